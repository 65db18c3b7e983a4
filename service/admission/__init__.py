"""Admission of requests: API keys, rate limits, and the queue before the replicas."""
