"""Models of the protocols, for SPIN."""
