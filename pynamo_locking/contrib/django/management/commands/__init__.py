"""``locks`` and ``dynamodb_tables``."""
