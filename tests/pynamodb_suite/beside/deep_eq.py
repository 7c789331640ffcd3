"""Compares what two requests have in them. PynamoDB's tests bring a function of this name that is not shipped."""


def deep_eq(found, expected, *, _assert):
    """Fail unless both are equal; `_assert` is always True."""
    assert found == expected, f"{found} != {expected}"
