"""Writes grammars in llguidance's form of Lark: tool calls, structural tags, and the preamble before an answer.

Marks of tool calls such as `<tool_call>` may be single tokens. They are then written as tokens, and their spelling in
other tokens is not allowed in free text. So a mark in the answer's text is always the token.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from service.constraints.checks import check_grammar
from service.constraints.constraint import Constraint, Preamble
from service.constraints.structural_tags import trigger_of

#: JSON on one line, as `json.dumps` writes it. So the grammar forces most tokens, and no answer is white space. `oneOf`
#: is obeyed as `anyOf`: the library has no other form.
JSON_OPTIONS: Final[Any] = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "lenient": False,
    "coerce_one_of": True,
}

#: text -> token
TokenMarks = Mapping[str, int]


def lark_grammar(source: str) -> str:
    """The grammar of a text in Lark's or llama.cpp's form. ValueError if intersections in it are too large."""
    text = any_to_lark(source)
    check_grammar(text)
    return LLMatcher.grammar_from_lark(text)


def calls_grammar(constraint: Constraint, content: str | None, marks: TokenMarks) -> str:
    """The grammar of a constraint of the kind `calls`. `content`: the grammar of an answer without calls, if any."""
    source = json.loads(constraint.source)
    opening, between = source["opening"], source["between"]
    more = "" if between is None else f"({_literal(between, marks)} call)*"
    preamble = constraint.preamble
    unlike = () if preamble is None or preamble.in_prompt else (preamble.begin,)
    start, parts = _literal(opening, marks), []
    if content is not None:
        start, parts = f"@content | {start} calls", _with_name("content", content)
    elif not source["required"]:
        start = f"TEXT | {f'BEFORE? {start}' if opening in marks else 'BEFORE'} calls"
    else:
        start = f"{start} calls"
    rules = [
        f"start: {start}",
        f"calls: call {more}",
        f"TEXT: {_free((opening,), unlike)}",
        f"BEFORE: {_free((opening,), unlike) if opening in marks else _ending(opening, unlike=unlike)}",
        "call: " + " | ".join(f"call_{i}" for i in range(len(source["forms"]))),
    ]
    for i, form in enumerate(source["forms"]):
        rules.append(f"call_{i}: {_literal(form['head'], marks)} arguments_{i} {_literal(form['tail'], marks)}")
        rules.append(f"arguments_{i}: {_json_rule(form['schema'])}")
    return _joined("\n".join(rules), parts)


def tags_grammar(form: Mapping[str, Any], marks: TokenMarks) -> str:
    """The grammar of a structural tag."""
    rules = TagRules(marks)
    start = rules.expression(form)
    parts = [part for name, text in rules.grammars.items() for part in _with_name(name, lark_grammar(text))]
    text = "\n".join([f"start: {start}", *rules.rules])
    check_grammar(text)
    return _joined(text, parts)


def with_preamble(preamble: Preamble, grammar: str, marks: TokenMarks) -> str:
    """The grammar with a preamble before it."""
    up_to = f"THOUGHT {_literal(preamble.end, marks)}" if preamble.end in marks else "THOUGHT"
    text = _free((preamble.end,), ()) if preamble.end in marks else _ending(preamble.end)
    begin = "" if preamble.in_prompt else _literal(preamble.begin, marks)
    start = "preamble @answer" if preamble.in_prompt else "preamble @answer | @answer"
    rules = [f"start: {start}", f"preamble: {begin} {up_to} {_literal(preamble.gap, marks)}", f"THOUGHT: {text}"]
    return _joined("\n".join(rules), _with_name("answer", grammar))


def _literal(text: str, marks: TokenMarks) -> str:
    """A text. Marks that are tokens are written as tokens."""
    longest_first = sorted(marks, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first)) or "(?!)"
    parts = re.split(f"({pattern})", text)
    written = [
        f"<[{marks[part]}]>" if part in marks else json.dumps(part, ensure_ascii=False) for part in parts if part
    ]
    return " ".join(written)


def _json_rule(schema: Any) -> str:
    """The body of a rule for JSON that fits a schema."""
    return f"%json {json.dumps({'x-guidance': JSON_OPTIONS, **schema}, ensure_ascii=False)}"


def _free(without: Sequence[str], unlike: Sequence[str] = ()) -> str:
    """The pattern of texts without any of `without` in them, and with none of `unlike` at the beginning."""
    excluded = [f"(?s:.*){text_pattern(text)}(?s:.*)" for text in without]
    return _excluding("(?s:.*)", excluded, unlike)


def _ending(mark: str, without: Sequence[str] = (), unlike: Sequence[str] = ()) -> str:
    """The pattern of texts that end with the first mark in them. `without`, `unlike`: as above."""
    excluded = [f"(?s:.*){text_pattern(mark)}(?s:.+)", *(f"(?s:.*){text_pattern(text)}(?s:.*)" for text in without)]
    return _excluding(f"(?s:.*){text_pattern(mark)}", excluded, unlike)


def _excluding(pattern: str, excluded: Sequence[str], unlike: Sequence[str]) -> str:
    excluded = [*excluded, *(f"\\s*{text_pattern(text)}(?s:.*)" for text in unlike)]
    return " & ".join([f"/{pattern}/", *(f"~/{other}/" for other in excluded)])


def text_pattern(text: str) -> str:
    """The pattern of a text, between the slashes of a grammar."""
    return slashed(re.escape(text))


def slashed(pattern: str) -> str:
    """A pattern between the slashes of a grammar."""
    return re.sub(r"\\.|/", lambda match: "\\/" if match[0] == "/" else match[0], pattern, flags=re.DOTALL)


def _with_name(name: str, grammar: str) -> list[dict[str, Any]]:
    """The parts of a grammar. The first one gets a name."""
    parts = json.loads(grammar)["grammars"] if grammar.startswith('{"grammars"') else [{"lark_grammar": grammar}]
    return [{**parts[0], "name": name}, *parts[1:]]


def _joined(first: str, parts: list[dict[str, Any]]) -> str:
    return json.dumps({"grammars": [{"lark_grammar": first}, *parts]}, ensure_ascii=False)


# --- structural tags --------------------------------------------------------------------------------


class TagRules:
    """The rules of a checked format. `rules`: the rules besides the first. `grammars`: name -> a grammar of its own."""

    def __init__(self, marks: TokenMarks) -> None:
        self._marks = marks
        self.rules: list[str] = []
        self.grammars: dict[str, str] = {}

    def expression(self, form: Mapping[str, Any]) -> str:
        made: str = getattr(self, f"_{form['type']}")(form)
        return made

    def _literal(self, text: str) -> str:
        return _literal(text, self._marks)

    def _rule(self, body: str, name: str = "part") -> str:
        name = f"{name}_{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def _const_string(self, form: Mapping[str, Any]) -> str:
        return self._literal(form["value"]) or '""'

    def _json_schema(self, form: Mapping[str, Any]) -> str:
        return self._rule(_json_rule(form["json_schema"]))

    def _regex(self, form: Mapping[str, Any]) -> str:
        return self._rule(f"/{slashed(form['pattern'])}/", "PART")

    def _grammar(self, form: Mapping[str, Any]) -> str:
        name = f"grammar_{len(self.grammars)}"
        self.grammars[name] = form["grammar"]
        return f"@{name}"

    def _any_text(self, form: Mapping[str, Any]) -> str:
        return self._rule(_free(form.get("excluded_str", ())), "PART") + "?"

    def _sequence(self, form: Mapping[str, Any]) -> str:
        return self._rule(" ".join(map(self.expression, form["elements"])))

    def _or(self, form: Mapping[str, Any]) -> str:
        return self._rule(" | ".join(map(self.expression, form["elements"])))

    def _tag(self, form: Mapping[str, Any], trigger: str = "") -> str:
        """A tag. `trigger`: the beginning of its `begin` that is written already."""
        content, end = form["content"], form["end"]
        begin = self._literal(form["begin"].removeprefix(trigger))
        if content["type"] != "any_text" or not end:
            return self._rule(f"{begin} {self.expression(content)} {self._literal(end)}")
        excluded = content.get("excluded_str", ())
        if end.startswith(tuple(self._marks)):
            text = self._rule(_free([end, *excluded]), "PART")
            return self._rule(f"{begin} {text}? {self._literal(end)}")
        return self._rule(f"{begin} {self._rule(_ending(end, excluded), 'PART')}")

    def _triggered_tags(self, form: Mapping[str, Any]) -> str:
        free = self._rule(_free(form["triggers"]), "PART")
        tag = self._rule(" | ".join(self._after_text(form, free)))
        if not form.get("at_least_one"):
            return self._rule(f"{tag} | {free}?" if form.get("stop_after_first") else f"{tag}* {free}?")
        first = self._rule(" | ".join(self._tag(tag) for tag in form["tags"]))
        return first if form.get("stop_after_first") else self._rule(f"{first} {tag}* {free}?")

    def _after_text(self, form: Mapping[str, Any], free: str) -> Iterator[str]:
        """The tags of each trigger after a text or none. `free`: the rule of a text without triggers."""
        triggers = form["triggers"]
        for trigger in triggers:
            tags = [tag for tag in form["tags"] if trigger_of(tag, triggers) == trigger]
            if trigger.startswith(tuple(self._marks)):
                yield from (f"{free}? {self._tag(tag)}" for tag in tags)
            elif tags:
                other_triggers = [text for text in triggers if text != trigger]
                up_to = self._rule(_ending(trigger, other_triggers), "PART")
                yield f"{up_to} ({' | '.join(self._tag(tag, trigger) for tag in tags)})"

    def _tags_with_separator(self, form: Mapping[str, Any]) -> str:
        tag = self._rule(" | ".join(self._tag(tag) for tag in form["tags"]))
        further = "" if form.get("stop_after_first") else f"({self._literal(form['separator'])} {tag})*"
        return self._rule(f"{tag} {further}") + ("" if form.get("at_least_one") else "?")
