"""The settings of a service, their sources and their defaults."""
