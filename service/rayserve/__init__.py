"""Ray Serve: the two deployments, control calls to all replicas, scaling, and TLS of the links."""
