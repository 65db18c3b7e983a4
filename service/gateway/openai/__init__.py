"""OpenAI's completions and chat completions, decoded through the same `ReplicaRequest` as POST /generate.

`protocol` has bodies and answers, `chat` the messages. `parse` makes one `ReplicaRequest` per choice.
`builder` builds the answer, `errors` the errors. The ingress mounts `routes`.
"""
