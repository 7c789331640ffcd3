"""Decides: pure functions and frozen dataclasses. No I/O, clock, thread or randomness."""
