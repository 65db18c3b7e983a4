"""Fields of vLLM, SGLang, TGI and llama.cpp under the names that this service parses.

A constraint has many names: `guided_json`, `structured_outputs`, `ebnf`, TGI's `response_format` with a `value`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from service.engine.request import MAX_SEED
from service.errors import InvalidRequest
from service.gateway.http.fields import IgnoredFields
from service.gateway.http.protocol import Json, whole_number
from service.json_text import read_json

#: field with a constraint -> the field of POST /generate; a `json` is a schema
_CONSTRAINTS: Final = {
    "ebnf": "grammar",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json": "json",
    "guided_regex": "regex",
    "json_schema": "json",
}
#: a `top_p` that is below the probability of any likeliest token
_LIKELIEST: Final = 1e-6
_STRUCTURED: Final = "structured_outputs"
_STRUCTURED_NAMES: Final = frozenset({"choice", "grammar", "json", "regex"})


def translated(body: Mapping[str, Any], ignored: IgnoredFields) -> Json:
    """A body with this service's names. Adds the options of constraints that are not served to `ignored`.

    InvalidRequest if a body asks for two constraints, or for one that is not served.
    """
    fields = {name: value for name, value in body.items() if value is not None}
    if fields.get("top_k") == -1:  # vLLM: off
        del fields["top_k"]
    if (top_p := fields.get("top_p")) == 0 and top_p is not False:  # OpenAI's smallest: the likeliest token alone
        fields["top_p"] = _LIKELIEST
    if isinstance(seed := whole_number(fields.get("seed")), int) and seed < 0:
        del fields["seed"]
        if seed != -1:  # -1: random
            fields["seed"] = seed & MAX_SEED
    if isinstance(form := fields.get("response_format"), Mapping):
        fields["response_format"] = _response_format(form)
    constraints = list(_constraints(fields, ignored))
    for name, target, value in constraints:
        if fields.get(target) not in (None, {"type": "text"}):
            raise InvalidRequest(f"{name} and another constraint are given, allowed is one of them", param=name)
        fields[target] = value
    return fields


def _constraints(fields: Json, ignored: IgnoredFields) -> Iterator[tuple[str, str, Any]]:
    """Takes the constraints out of a body: the name of each, and the field and value of POST /generate."""
    for name in _CONSTRAINTS.keys() & fields.keys():
        yield name, *_renamed(_CONSTRAINTS[name], fields.pop(name), name)
    options = fields.pop(_STRUCTURED, None)
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise InvalidRequest(f"{_STRUCTURED} is {str(options)[:80]!r}, an object is expected", param=_STRUCTURED)
    for option, value in options.items():
        name = f"{_STRUCTURED}.{option[:80]}"
        if value is None or value is False:
            continue
        if option in _STRUCTURED_NAMES:
            yield name, *_renamed(option, value, name)
        elif option == "json_object":
            yield name, "response_format", {"type": "json_object"}
        elif option == "structural_tag":
            raise InvalidRequest(f"{name} is not served; use json, regex, choice or grammar", param=name)
        else:
            ignored.add(name)


def _renamed(target: str, value: Any, name: str) -> tuple[str, Any]:
    """The field of POST /generate and its value. A schema may be JSON text."""
    if target != "json":
        return target, value
    if isinstance(value, str):
        try:
            value = read_json(value)
        except ValueError as error:
            raise InvalidRequest(f"{name} is no JSON: {error}", param=name) from None
    return "response_format", _of_schema(value)


def _response_format(form: Mapping[str, Any]) -> Json:
    """TGI writes a schema as `value`, llama.cpp as `schema`, both beside the type `json_object`."""
    schema = form.get("value", form.get("schema"))
    if form.get("type") == "json_object" and schema is not None:
        return _of_schema(schema)
    return dict(form)


def _of_schema(schema: Any) -> Json:
    return {"type": "json_schema", "json_schema": {"schema": schema}}
