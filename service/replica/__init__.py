"""What a replica process runs: the engine behind plain data, its card and its metrics. No HTTP and no Ray."""
