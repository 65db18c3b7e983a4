"""Anthropic's messages, decoded through the same `Work` as POST /generate.

`protocol` has bodies and answers. `parse` makes one `Work` of a body, `builder` builds the answer, `errors` the errors.
The ingress mounts `routes`.
"""
