"""The fields that a body of POST /v1/responses may have beside those that are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.gateway.http.fields import PASSED, Fields

_NO_OPS: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}

_HINTS: frozenset[str] = frozenset(
    {
        "context_management",
        "max_tool_calls",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "stream_options",
        "user",
    }
)

FIELDS = Fields(PASSED - {"response_format"}, _NO_OPS, _HINTS)
