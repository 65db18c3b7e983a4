"""Anthropic's messages, decoded through the same `ReplicaRequest` as POST /generate."""
