"""Load tests and chaos scripts, which use a running service from outside and check its invariants."""
