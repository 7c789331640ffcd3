"""Histories that others can check: processes at work under faults, what they asked for and were told, and a reader.

`histories` writes, merges and reads files in the form of Jepsen's histories. `lists` and `registers` check them from
the files alone. `run` makes them: ``make campaign MINUTES=20``, and ``python -m tests.campaign check FILE``.
"""
