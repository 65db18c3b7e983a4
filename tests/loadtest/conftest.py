"""The service in this process, for what is read of its answers."""

from tests.gateway.conftest import app, checkpoint, generator, http, settings

__all__ = ["app", "checkpoint", "generator", "http", "settings"]
