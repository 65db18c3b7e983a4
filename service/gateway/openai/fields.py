"""The fields that an OpenAI body may have beside OpenAI's own that are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.gateway.http.fields import PASSED, Fields

_NO_OPS: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}

_HINTS: frozenset[str] = frozenset(
    {
        "metadata",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
    }
)

FIELDS = Fields(PASSED, _NO_OPS, _HINTS)
