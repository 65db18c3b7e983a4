"""OpenAI's completions and chat completions, decoded through the same `ReplicaRequest` as POST /generate."""
