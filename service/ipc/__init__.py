"""Connections between two processes: frames and child processes, their values and their codec."""
