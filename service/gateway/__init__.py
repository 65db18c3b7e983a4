"""The code of an ingress process: HTTP in front, the replicas behind a `Backend`."""
