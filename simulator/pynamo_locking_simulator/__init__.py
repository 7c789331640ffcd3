"""Finds races in PynamoDB code on DynamoDB: handlers run as simulated processes, in many orders, under faults."""

from pynamo_locking_simulator._simulate import Found, simulate
from pynamo_locking_simulator._surroundings import SimulationError
from pynamo_locking_simulator._world import SimulatedProcess, World

for _public in (Found, SimulatedProcess, SimulationError, World):
    _public.__module__ = __name__  # as people import them, in the messages of test runners

__all__ = ["Found", "SimulatedProcess", "SimulationError", "World", "simulate"]
