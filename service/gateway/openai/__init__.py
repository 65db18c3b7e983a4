"""OpenAI's completions and chat completions, decoded through the same `Work` as POST /generate.

`protocol` has bodies and answers, `chat` the messages. `parse` makes one `Work` per choice of a body, `builder` builds
the answer, `errors` the errors. The ingress mounts `routes`.
"""
