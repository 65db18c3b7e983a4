"""The fields that an OpenAI body may have: OpenAI's own and those of POST /generate.

Any other field is ignored if its value changes nothing about the answer, else it is refused by name. A field with
the value `null` counts as left out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from service.decode.modes import KNOBS
from service.errors import InvalidRequest
from service.settings import nearest

#: fields that POST /generate parses under the same name
PASSED: frozenset[str] = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "response_format",
        "regex",
        "choice",
        "grammar",
        "timeout_s",
        "return_trace",
        "cache_salt",
        "priority",
        "prompt_cache_key",
        "mode",
        "quality",
        *KNOBS,
    }
)

#: field that is not served -> its values that change nothing
NO_OPS: Mapping[str, tuple[Any, ...]] = {
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

#: labels and hints, which no answer depends on
HINTS: frozenset[str] = frozenset(
    {
        "metadata",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
    }
)


def split(body: Mapping[str, Any], own: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The given fields that are in `own`, and those that POST /generate parses. InvalidRequest for any other."""
    given = {name: value for name, value in body.items() if value is not None and name not in HINTS}
    for name, value in given.items():
        if name in own or name in PASSED:
            continue
        if name not in NO_OPS:
            raise InvalidRequest(f"{name!r} is not a field; {nearest(name, {*own, *PASSED})}", param=name)
        if not any(_same(value, no_op) for no_op in NO_OPS[name]):
            raise InvalidRequest(_not_served(name, value), param=name)
    return _among(given, own), _among(given, PASSED)


def _among(given: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in names}


def _same(value: object, other: object) -> bool:
    """Equality of JSON values: false differs from 0, 0.0 equals 0."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _not_served(name: str, value: object) -> str:
    allowed = " or ".join(json.dumps(no_op) for no_op in (*NO_OPS[name], None))
    return f"{name} is {json.dumps(value, ensure_ascii=False)[:80]}, which is not served; allowed is {allowed}"
