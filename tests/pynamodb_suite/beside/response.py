"""Stands for an answer at which no test looks. PynamoDB's tests bring a class of this name that is not shipped."""


class HttpOK:
    """An answer."""
