"""The package measured beside its alternatives: ``python -m benchmarks``."""
