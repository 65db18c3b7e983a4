"""The schema of a body that has an API's own fields and fields of POST /generate, for the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from service.gateway.http.schemas import REQUESTS
from service.quality.schema import QUALITIES


def asked(
    schema: type[BaseModel], passed: frozenset[str], warmest: float, example: Mapping[str, Any]
) -> dict[str, Any]:
    """FastAPI's argument for such a body. `passed`: the fields of POST /generate. `warmest`: highest temperature."""
    content = {"application/json": {"schema": _schema(schema, passed, warmest), "example": example}}
    return {"openapi_extra": {"requestBody": {"required": True, "content": content}}}


@cache
def _schema(schema: type[BaseModel], passed: frozenset[str], warmest: float) -> dict[str, Any]:
    """Own fields and those shared with POST /generate, of all modes, without references.

    The result is cached and must not be changed.
    """
    made = schema.model_json_schema()
    definitions = made.pop("$defs", {})
    for request in REQUESTS.values():
        shared = request.model_json_schema()
        definitions |= shared.get("$defs", {})
        made["properties"] |= {name: field for name, field in shared["properties"].items() if name in passed}
    made["properties"]["temperature"] |= {"maximum": warmest}
    made["properties"]["mode"] = {"enum": list(REQUESTS), "description": "default: the server's"}
    made["properties"]["quality"] = {"enum": list(QUALITIES), "description": "instead of a mode and its knobs"}
    resolved: dict[str, Any] = inlined(made, definitions)
    return resolved


def inlined(value: Any, definitions: Mapping[str, Any]) -> Any:
    """A JSON schema with its references replaced by what they name."""
    if isinstance(value, list):
        return [inlined(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        return inlined(definitions[value["$ref"].rpartition("/")[2]], definitions)
    return {name: inlined(item, definitions) for name, item in value.items()}
