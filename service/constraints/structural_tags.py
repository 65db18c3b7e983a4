"""Structural tags: free text with tags whose contents are constrained, as xgrammar defines them (vLLM, SGLang).

`checked_format` checks a format at the ingress. `TagRules` writes it as rules of a grammar, where the library is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

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
        if _trigger_of(tag, checked["triggers"]) is None:
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


def _trigger_of(tag: Mapping[str, Any], triggers: Sequence[str]) -> str | None:
    return next((trigger for trigger in triggers if tag["begin"].startswith(trigger)), None)


class GrammarWriter(NamedTuple):
    """How the library's grammars write things.

    `literal`: a text. `text`: the pattern of texts that have none of some texts in them. `ending`: the pattern of texts
    that end with the first occurrence of a text, and have none of some other ones in them. `has_mark`: whether a text
    begins with a token of its own. `schema`: the body of a rule for JSON. `pattern`: a regular expression.
    """

    literal: Callable[[str], str]
    text: Callable[[Sequence[str]], str]
    ending: Callable[[str, Sequence[str]], str]
    has_mark: Callable[[str], bool]
    schema: Callable[[Any], str]
    pattern: Callable[[str], str]


class TagRules:
    """The rules of a checked format. `rules`: the rules besides the first. `grammars`: name -> a grammar of its own."""

    def __init__(self, writer: GrammarWriter) -> None:
        self._writer = writer
        self.rules: list[str] = []
        self.grammars: dict[str, str] = {}

    def expression(self, form: Mapping[str, Any]) -> str:
        """The expression of a format."""
        made: str = getattr(self, f"_{form['type']}")(form)
        return made

    def _rule(self, body: str, name: str = "part") -> str:
        name = f"{name}_{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def _const_string(self, form: Mapping[str, Any]) -> str:
        return self._writer.literal(form["value"]) or '""'

    def _json_schema(self, form: Mapping[str, Any]) -> str:
        return self._rule(self._writer.schema(form["json_schema"]))

    def _regex(self, form: Mapping[str, Any]) -> str:
        return self._rule(f"{self._writer.pattern(form['pattern'])}", "PART")

    def _grammar(self, form: Mapping[str, Any]) -> str:
        name = f"grammar_{len(self.grammars)}"
        self.grammars[name] = form["grammar"]
        return f"@{name}"

    def _any_text(self, form: Mapping[str, Any]) -> str:
        return self._rule(self._writer.text(form.get("excluded_str", ())), "PART") + "?"

    def _sequence(self, form: Mapping[str, Any]) -> str:
        return self._rule(" ".join(map(self.expression, form["elements"])))

    def _or(self, form: Mapping[str, Any]) -> str:
        return self._rule(" | ".join(map(self.expression, form["elements"])))

    def _tag(self, form: Mapping[str, Any], trigger: str = "") -> str:
        """A tag. `trigger`: the beginning of its `begin` that is written already."""
        content, end = form["content"], form["end"]
        begin = self._writer.literal(form["begin"].removeprefix(trigger))
        if content["type"] != "any_text" or not end:
            return self._rule(f"{begin} {self.expression(content)} {self._writer.literal(end)}")
        excluded = content.get("excluded_str", ())
        if self._writer.has_mark(end):
            text = self._rule(self._writer.text([end, *excluded]), "PART")
            return self._rule(f"{begin} {text}? {self._writer.literal(end)}")
        return self._rule(f"{begin} {self._rule(self._writer.ending(end, excluded), 'PART')}")

    def _triggered_tags(self, form: Mapping[str, Any]) -> str:
        free = self._rule(self._writer.text(form["triggers"]), "PART")
        tag = self._rule(" | ".join(self._after_text(form, free)))
        if not form.get("at_least_one"):
            return self._rule(f"{tag} | {free}?" if form.get("stop_after_first") else f"{tag}* {free}?")
        first = self._rule(" | ".join(self._tag(tag) for tag in form["tags"]))
        return first if form.get("stop_after_first") else self._rule(f"{first} {tag}* {free}?")

    def _after_text(self, form: Mapping[str, Any], free: str) -> Iterator[str]:
        """The tags of each trigger after a text or none. `free`: the rule of a text without triggers."""
        triggers = form["triggers"]
        for trigger in triggers:
            tags = [tag for tag in form["tags"] if _trigger_of(tag, triggers) == trigger]
            if self._writer.has_mark(trigger):
                yield from (f"{free}? {self._tag(tag)}" for tag in tags)
            elif tags:
                other_triggers = [text for text in triggers if text != trigger]
                up_to = self._rule(self._writer.ending(trigger, other_triggers), "PART")
                yield f"{up_to} ({' | '.join(self._tag(tag, trigger) for tag in tags)})"

    def _tags_with_separator(self, form: Mapping[str, Any]) -> str:
        tag = self._rule(" | ".join(self._tag(tag) for tag in form["tags"]))
        further = "" if form.get("stop_after_first") else f"({self._writer.literal(form['separator'])} {tag})*"
        return self._rule(f"{tag} {further}") + ("" if form.get("at_least_one") else "?")
