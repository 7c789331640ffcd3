"""The DynamoDB engines that the tests run against: moto, dynoxide, DynamoDB Local and, when asked for, AWS.

Imports nothing: the pictures use `servers` alone, in an environment without pytest.
"""
