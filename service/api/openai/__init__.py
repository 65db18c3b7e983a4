"""OpenAI's completions and chat completions, decoded through the same `ReplicaRequest` as POST /generate.

`protocol` has bodies and answers, `chat` the messages. `parse` makes one `ReplicaRequest` per choice, `builder` builds
the answer. The ingress mounts `routes`, which serves `responses`, too.
"""
