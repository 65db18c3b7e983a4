"""The engine of a replica in a process of its own: the process, its core, its messages, and its client."""
