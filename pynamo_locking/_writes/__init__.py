"""A guarded write: planned, sent, judged."""
