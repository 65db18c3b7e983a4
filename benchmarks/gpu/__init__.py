"""Measures a new device in three stages: correctness, speed, peers. `make gpu` runs them.

It needs no Ray and no HTTP server.
"""
