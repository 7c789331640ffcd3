"""How rows are kept from overlapping each other: above the transactions, which write them."""
