"""Rows that do not overlap."""
