"""Measurements. Each module runs on its own and prints its table: ``python -m benchmarks.overhead``."""
