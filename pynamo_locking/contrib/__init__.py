"""Thin connections to other frameworks: `pynamo_locking.contrib.flask` and `pynamo_locking.contrib.django`."""
