"""Anthropic's messages, decoded through the same `Work` as POST /generate.

A body goes through `fields` (which names are allowed), `schemas` (Anthropic's own fields) and `convert` (one `Work`).
The answer goes through `answers` or `stream`. The ingress mounts `routes`.
"""
