"""Logs, metrics and tracing of both kinds of processes."""
