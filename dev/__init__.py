"""What draws, documents and records for us. It is not installed."""
