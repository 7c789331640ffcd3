"""One stored item: its key, its image, its version, its expiry."""
