"""OpenAI's POST /v1/responses for clients that keep their conversations themselves. Nothing is stored.

`protocol` has the body and the answer. `parse` makes one `ReplicaRequest` of a body, `builder` builds the answer.
"""
