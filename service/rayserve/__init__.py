"""Ray Serve: the two deployments, the handle between them, routing and scaling."""
