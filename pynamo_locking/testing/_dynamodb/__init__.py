"""The parts of the in-memory DynamoDB: values, tables, and one module for each family of operations.

What DynamoDB refuses is raised as a `Refusal`, by any of them.
"""
