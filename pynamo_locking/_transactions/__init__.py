"""Any number of items, all or none."""
