"""Asks a GPU in three stages: correctness, speed, peers. Each fits six minutes; `make gpu` runs them.

It needs torch, Triton, transformers and msgspec: no Ray, no HTTP server, no command line's packages.
"""
