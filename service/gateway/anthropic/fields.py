"""The fields that a body of Anthropic's may have beside those that are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.gateway.http.fields import PASSED, Fields

_NO_OPS: Mapping[str, tuple[Any, ...]] = {
    "container": (),
    "mcp_servers": ([],),
}

_HINTS: frozenset[str] = frozenset(
    {
        "betas",
        "cache_control",
        "context_management",
        "diagnostics",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
    }
)

FIELDS = Fields(PASSED - {"stop"}, _NO_OPS, _HINTS)
