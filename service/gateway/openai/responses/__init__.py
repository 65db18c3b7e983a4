"""OpenAI's POST /v1/responses for clients that keep their conversations themselves. Nothing is stored.

A body goes through `fields`, `schemas` and `convert` (one `Work`), its messages through `items`. The answer goes
through `answers`, made of the parts in `output`. `routes` is mounted by the ingress.
"""
