"""POST /v1/score: probabilities of labels at positions of a pinned text.

`protocol` has the body and the answer. `parse` makes one `ReplicaRequest` per item, `builder` builds the answer.
The ingress mounts `routes`.
"""
