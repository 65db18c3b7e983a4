"""What both processes tell of themselves: logs, metrics, spans."""
