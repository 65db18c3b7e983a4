"""POST /v1/score: probabilities of labels at positions of a pinned text.

`protocol` has the body and the answer. `routes` makes one `ReplicaRequest` per item and builds the answer.
"""
