"""Anthropic's messages, decoded through the same `ReplicaRequest` as POST /generate.

`protocol` has bodies and answers. `parse` makes one `ReplicaRequest` of a body. `builder` builds the answer, `errors`
the errors. The ingress mounts `routes`.
"""
