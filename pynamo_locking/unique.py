"""Unique values: the table of their rows, and the report of a check."""

from pynamo_locking._models.unique_audit import UniqueProblem, UniqueReport
from pynamo_locking._models.unique_table import UniqueTable

__all__ = ["UniqueProblem", "UniqueReport", "UniqueTable"]
