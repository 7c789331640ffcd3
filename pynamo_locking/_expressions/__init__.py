"""DynamoDB's expression language: parsed once, evaluated on items.

Example:
    >>> from pynamo_locking._expressions import Expressions
    >>> request = {
    ...     "ConditionExpression": "size(#q) < :max",
    ...     "ExpressionAttributeNames": {"#q": "queue"},
    ...     "ExpressionAttributeValues": {":max": {"N": "2"}},
    ... }
    >>> condition = Expressions(request, "ConditionExpression").condition()
    >>> condition.holds({"queue": {"M": {}}})
    True
"""

from pynamo_locking._expressions.request import BoundCondition, BoundProjection, BoundUpdate, Expressions

__all__ = ["BoundCondition", "BoundProjection", "BoundUpdate", "Expressions"]
