"""Fields of vLLM, SGLang, TGI and llama.cpp under the names that this service parses."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from service.api.fields import IgnoredFields
from service.api.protocol import Json, whole_number
from service.constraints.json_text import read_json
from service.constraints.structural_tags import older_format
from service.engine.request import MAX_SEED
from service.errors import InvalidRequest

#: field with a constraint -> the field of POST /generate; a `json` is a schema
_CONSTRAINTS: Final = {
    "ebnf": "grammar",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json": "json",
    "guided_regex": "regex",
    "json_schema": "json",
}
#: type of a `response_format` of another server -> the constraint, and the names of the field with its value
_FORMS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "grammar": ("grammar", ("grammar", "value")),  # Fireworks
    "json": ("json", ("value", "schema", "json_schema")),  # TGI
    "json_object": ("json", ("value", "schema")),  # TGI, llama.cpp
    "json_schema": ("json", ("schema", "value")),  # llama.cpp, Together, without OpenAI's object
    "regex": ("regex", ("value", "regex", "pattern")),  # TGI, Together
    "regex_schema": ("regex", ("regex_schema",)),  # LMDeploy
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
    _take_nvext(fields, ignored)
    constraints = []
    if isinstance(form := fields.pop("response_format", None), Mapping):
        constraints.append(("response_format", *_response_format(form)))
    elif form is not None:
        fields["response_format"] = form
    constraints += _constraints(fields, ignored)
    for name, target, value in constraints:
        if fields.get(target) not in (None, {"type": "text"}):
            raise InvalidRequest(f"{name} and another constraint are given, allowed is one of them", param=name)
        fields[target] = value
    return fields


def _take_nvext(fields: Json, ignored: IgnoredFields) -> None:
    """Puts the constraints of NVIDIA's extension beside the other fields. Its other options are ignored."""
    extension = fields.pop("nvext", None)
    if extension is None:
        return
    if not isinstance(extension, Mapping):
        raise InvalidRequest(f"nvext is {str(extension)[:80]!r}, an object is expected", param="nvext")
    for name, value in extension.items():
        if name not in _CONSTRAINTS:
            _ignore(f"nvext.{name[:80]}", ignored)
        elif value is not None and fields.setdefault(name, value) != value:
            raise InvalidRequest(
                f"nvext.{name} and another {name} are given, allowed is one of them", param=f"nvext.{name}"
            )


def _ignore(name: str, ignored: IgnoredFields) -> None:
    """Adds an option that is not served. InvalidRequest if the request is strict."""
    if ignored.strict:
        raise InvalidRequest(f"{name} is not supported", param=name)
    ignored.add(name)


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
            yield name, "response_format", _structural_tag(_parsed(value, name))
        else:
            _ignore(name, ignored)


def _renamed(target: str, value: Any, name: str) -> tuple[str, Any]:
    """The field of POST /generate and its value. A schema may be JSON text."""
    return ("response_format", _of_schema(_parsed(value, name))) if target == "json" else (target, value)


def _parsed(value: Any, name: str) -> Any:
    """A value, or the value of a JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return read_json(value)
    except ValueError as error:
        raise InvalidRequest(f"{name} is no JSON: {error}", param=name) from None


def _response_format(form: Mapping[str, Any]) -> tuple[str, Any]:
    """The field of POST /generate and its value, for a form of any server."""
    kind = form.get("type")
    if isinstance(kind, str) and kind in _FORMS:
        target, names = _FORMS[kind]
        values = [(name, form[name]) for name in names if form.get(name) is not None]
        if values and (kind != "json_schema" or form.get("json_schema") is None):
            name, value = values[0]
            target, value = _renamed(target, value, f"response_format.{name}")
            if target == "response_format" and form.get("strict") is not None:
                value["json_schema"]["strict"] = form["strict"]
            return target, value
    return "response_format", _structural_tag(form) if kind == "structural_tag" else dict(form)


def _structural_tag(tag: Any) -> Any:
    """A structural tag in the newer form: with a `format`."""
    if isinstance(tag, Mapping) and "format" not in tag:
        return {"type": "structural_tag", "format": older_format(tag)}
    return dict(tag) if isinstance(tag, Mapping) else tag


def _of_schema(schema: Any) -> Json:
    return {"type": "json_schema", "json_schema": {"schema": schema}}
