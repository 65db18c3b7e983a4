"""Chaos scripts: each disturbs a service under load and checks its invariants, which decide the exit status.

`python -m loadtest.chaos.<name>` starts a service, or uses that of `--url`. It prints a readable summary and one line
of JSON. The common parts are in `loadtest/harness.py`.
"""
