"""Certify: ask a DynamoDB for what this package promises, under kills and lost answers, and write a dated page.

It creates tables under a prefix, counts the read and write units that it uses, stops before a cap, and removes the
tables. Each stage runs in child processes; the parent makes no request to a table but to create, see and delete it.
"""

from certify import page
from certify.plan import STAGES, Place, Plan, Price
from certify.stages import Course, Report
from certify.tables import ForeignTable, Tables

__all__ = ["STAGES", "Course", "ForeignTable", "Place", "Plan", "Price", "Report", "Tables", "page"]
