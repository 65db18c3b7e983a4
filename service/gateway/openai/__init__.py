"""OpenAI's completions and chat completions, decoded through the same `Work` as POST /generate.

A body goes through `fields` (which names are allowed), `schemas` (OpenAI's own fields) and `convert` (one `Work` per
choice). The answer goes through `dialect` (the JSON of either route) and `answers` or `stream`. The ingress mounts
`routes`.
"""
