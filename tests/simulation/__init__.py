"""The library's own code in a world where nothing happens by chance: each step is a recorded choice.

Reading order: `plans` (what a run is), `engine` (choices, scheduler, world, network), `workloads` (who does
what), `checkers` (what must be true), `run` (all of it together), `explore` (which runs), `planted` (bugs
that must be found).
"""
