"""Connections between ingresses and replicas that carry the requests."""
