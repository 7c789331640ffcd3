"""A bank with eight tellers, with and without locks: ``python -m demo``."""
