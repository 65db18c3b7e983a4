"""HTTP: bodies, validation, answers, streams, errors, and the server with its limits."""
