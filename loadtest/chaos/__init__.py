"""Chaos: each script disturbs a service under load, checks its invariants and exits by them.

`python -m loadtest.chaos.<name>` starts a service of its own or takes one by `--url`; it prints a readable
summary and one line of JSON. What they share is in `common.py`. Knows nothing of the service's inside but its
processes' names and its metrics.
"""
