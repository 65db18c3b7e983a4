"""Ray Serve's side: the two deployments, the handle between them, routing and scaling."""
