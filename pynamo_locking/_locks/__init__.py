"""A lock, from the queue to its release."""
