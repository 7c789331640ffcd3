"""Decides: pure functions and values, without clocks, threads or requests."""
