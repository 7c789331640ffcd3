"""Logs, signals, traces and metrics, made of the events of `pynamo_locking.events`.

Each is a separate module, imported by the application: `logs` (the standard library), `signals` (blinker) and
`opentelemetry`.
"""
