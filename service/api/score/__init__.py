"""POST /v1/score: probabilities of labels at positions of a pinned text."""
