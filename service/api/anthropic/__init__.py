"""Anthropic's messages, decoded through the same `ReplicaRequest` as POST /generate.

`protocol` has bodies and answers. `routes` parses a body to one `ReplicaRequest`, `builder` builds the answer.
"""
