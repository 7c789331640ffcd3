"""Runs PynamoDB's own tests, with its classes and with ours in their place."""
