"""Measures a new device in four stages: correctness, the paper's rows, speed, peers. `make gpu` runs them.

It needs no Ray and no HTTP server.
"""
