"""Requests, answers and states that cross from an ingress to a replica and back."""
