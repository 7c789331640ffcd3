"""Locks, versions and transactions beside their alternatives: ``python -m benchmarks.locks``."""
