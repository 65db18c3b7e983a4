"""Makes pandas look absent, as where a user installs the service: Ray Serve's processes import it in 0.35 s each."""

raise ImportError("no service needs pandas")
