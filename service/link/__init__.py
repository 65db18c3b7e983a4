"""Connections between ingresses and replicas that carry requests, beside Serve's handles."""
