"""The DynamoDB engines that the tests run against: moto, dynoxide, DynamoDB Local and, when asked for,
AWS.
"""

from tests.engines.engine import Engine, running
from tests.engines.servers import Server, Servers, start_dynamodb_local, start_dynoxide

__all__ = ["Engine", "Server", "Servers", "running", "start_dynamodb_local", "start_dynoxide"]
