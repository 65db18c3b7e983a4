"""Structural tags: free text with tags whose contents are constrained, as xgrammar defines them (vLLM, SGLang).

`checked_format` checks a format at the ingress. `lark.py` writes it as rules of a grammar, where the library is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from service.errors import InvalidRequest

#: type of a format -> its fields and their types; the types of optional ones in a tuple
_FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "const_string": {"value": str},
    "json_schema": {"json_schema": (dict, bool)},
    "regex": {"pattern": str},
    "grammar": {"grammar": str},
    "any_text": {},
    "sequence": {"elements": list},
    "or": {"elements": list},
    "tag": {"begin": str, "content": dict, "end": str},
    "triggered_tags": {"triggers": list, "tags": list},
    "tags_with_separator": {"tags": list, "separator": str},
}
#: fields that may be left out -> their types
_OPTIONAL: Final[Mapping[str, type]] = {"excluded_str": list, "at_least_one": bool, "stop_after_first": bool}
_MAX_DEPTH: Final = 16


def older_format(tag: Mapping[str, Any]) -> Any:
    """The format of a structural tag in the older form: `triggers`, and `structures` of `begin`, `schema`, `end`."""
    structures = tag.get("structures")
    return {
        "type": "triggered_tags",
        "triggers": tag.get("triggers"),
        "tags": [
            {
                "type": "tag",
                "begin": structure.get("begin"),
                "content": {"type": "json_schema", "json_schema": structure.get("schema")},
                "end": structure.get("end"),
            }
            for structure in (structures if isinstance(structures, list) else ())
            if isinstance(structure, Mapping)
        ],
    }


def checked_format(form: Any, param: str, adapt: Callable[[Any, str], Any], depth: int = 0) -> dict[str, Any]:
    """A copy of a format whose fields have the right types. `adapt`: changes a schema in it, by the schema's path.

    InvalidRequest names the first wrong part.
    """
    checked = _with_fields(form, param, depth)
    if "json_schema" in checked:
        checked["json_schema"] = adapt(checked["json_schema"], f"{param}.json_schema")
    if "content" in checked:
        checked["content"] = checked_format(checked["content"], f"{param}.content", adapt, depth + 1)
    for name in {"elements", "tags"} & checked.keys():
        parts = [
            {"type": "tag", **part} if name == "tags" and isinstance(part, Mapping) else part for part in checked[name]
        ]
        checked[name] = [
            checked_format(part, f"{param}.{name}.{index}", adapt, depth + 1) for index, part in enumerate(parts)
        ]
        if not parts or (name == "tags" and any(part["type"] != "tag" for part in checked[name])):
            raise InvalidRequest(f"{param}.{name} is empty or has another type than tag", param=f"{param}.{name}")
    for tag in checked["tags"] if checked["type"] == "triggered_tags" else ():
        if trigger_of(tag, checked["triggers"]) is None:
            reason = f"has no beginning of {tag['begin'][:80]!r}"
            raise InvalidRequest(f"{param}.triggers {reason}", param=f"{param}.triggers")
    return checked


def _with_fields(form: Any, param: str, depth: int) -> dict[str, Any]:
    """The fields of a format, without those within its parts."""
    kind = form.get("type") if isinstance(form, Mapping) else None
    if not isinstance(kind, str) or kind not in _FIELDS or depth > _MAX_DEPTH:
        raise InvalidRequest(
            f"{param}.type is {str(kind)[:80]!r}, served are {', '.join(_FIELDS)}, in {_MAX_DEPTH} levels", param=param
        )
    checked: dict[str, Any] = {"type": kind}
    for name, types in {**_FIELDS[kind], **_OPTIONAL}.items():
        value = form.get(name)
        if value is None and name in _OPTIONAL:
            continue
        texts = value if name in {"triggers", "excluded_str"} and isinstance(value, list) else ["-"]
        if not isinstance(value, types) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise InvalidRequest(f"{param}.{name} is missing or of the wrong type", param=f"{param}.{name}")
        checked[name] = value
    return checked


def schemas_in(form: Mapping[str, Any]) -> Iterator[Any]:
    """The schemas of a checked format."""
    if "json_schema" in form:
        yield form["json_schema"]
    for part in (*form.get("elements", ()), *form.get("tags", ()), *([form["content"]] if "content" in form else ())):
        yield from schemas_in(part)


def trigger_of(tag: Mapping[str, Any], triggers: Sequence[str]) -> str | None:
    """The first trigger that a tag begins with."""
    return next((trigger for trigger in triggers if tag["begin"].startswith(trigger)), None)
