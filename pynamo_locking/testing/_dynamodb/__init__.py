"""The parts of the in-memory DynamoDB: values, tables, and one module for each family of operations."""
