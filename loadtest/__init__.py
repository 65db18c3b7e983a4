"""What puts load on a running service from outside: chaos scripts with their invariants."""
