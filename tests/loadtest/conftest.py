"""The service in this process, whose answers the tests read."""

from tests.gateway.conftest import app, checkpoint, generator, http, settings

__all__ = ["app", "checkpoint", "generator", "http", "settings"]
