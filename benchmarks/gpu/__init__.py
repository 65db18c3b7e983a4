"""Asks a GPU in five stages: correctness, speed, peers, deterministic, service. `make gpu` runs the first two.

Each fits six minutes. They need torch, Triton, transformers and msgspec. Only `service` needs Ray and HTTP.
"""
