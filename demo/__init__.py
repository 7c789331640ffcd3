"""A bank with eight tellers: without protection, with transactions, and with locks: ``python -m demo``."""
