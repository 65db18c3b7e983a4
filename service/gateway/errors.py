"""The shape of errors on each route, for all that answers in the name of an ingress."""

from __future__ import annotations

from service.gateway.anthropic.errors import anthropic_error
from service.gateway.http.errors import Write, error_json
from service.gateway.openai.errors import openai_error


def error_writer(path: str) -> Write:
    """The function that writes the errors of a path, errors of the router included."""
    if path.startswith("/v1/messages"):
        return anthropic_error
    return openai_error if path.startswith("/v1/") else error_json
