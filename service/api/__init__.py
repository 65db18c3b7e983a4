"""The HTTP service: requests in, the engine's blocks out."""
