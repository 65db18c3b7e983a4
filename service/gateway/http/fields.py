"""The fields that a body of another API may have: that API's own, those of POST /generate, and a few that ask nothing.

Any other field is ignored if its value changes nothing about the answer, else it is refused by name. A field with
the value `null` counts as left out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of an API beside its own.

    `passed`: those that POST /generate parses. `no_ops`: field that is not served -> its values that change nothing.
    `hints`: labels and hints, which no answer depends on.
    """

    passed: frozenset[str]
    no_ops: Mapping[str, tuple[Any, ...]]
    hints: frozenset[str]

    def split(
        self, body: Mapping[str, Any], own: Collection[str], *, strict: bool = True
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The given fields that are in `own`, and those that POST /generate parses. InvalidRequest for any other.

        `strict`: whether unknown fields are refused, else they are ignored.
        """
        given = {name: value for name, value in body.items() if value is not None and name not in self.hints}
        for name, value in given.items():
            if name in own or name in self.passed:
                continue
            if name not in self.no_ops:
                if strict:
                    message = f"{name[:80]!r} is not a field; {nearest(name, {*own, *self.passed})}"
                    raise InvalidRequest(message, param=name)
            elif not any(_same(value, no_op) for no_op in self.no_ops[name]):
                raise InvalidRequest(_not_served(name, value, self.no_ops[name]), param=name)
        return _among(given, own), _among(given, self.passed)


def _among(given: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in names}


def _same(value: object, other: object) -> bool:
    """Equality of JSON values: false differs from 0, 0.0 equals 0."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _not_served(name: str, value: object, no_ops: tuple[Any, ...]) -> str:
    allowed = " or ".join(json.dumps(no_op) for no_op in (*no_ops, None))
    return f"{name} is {json.dumps(value, ensure_ascii=False)[:80]}, which is not served; allowed is {allowed}"
