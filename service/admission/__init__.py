"""Who may ask, how much, and who waits: API keys, rate limits, the queue before the replicas. Knows no HTTP, no Ray."""
