"""Acts: the only importers of time, threading, randomness and botocore; all condition text."""
