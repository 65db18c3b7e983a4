"""POST /v1/score: probabilities of labels or tokens at places of a pinned text, in one forward.

A body goes through `schemas` and `convert` (one `Work` per item), the answers through `answers`. The ingress mounts
`routes`.
"""
