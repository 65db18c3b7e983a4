"""The recipe of the demo's fourth edition: its tasks, its deep and narrow backbone, its judge."""
