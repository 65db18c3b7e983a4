"""What an ingress process runs: HTTP in front, the replicas behind a `Backend`. No torch and no Ray."""
