"""Validation and orchestration as plain functions and state machines: no I/O, nothing awaited."""
