"""Grammars of calls of tools, and of the lead before a constrained answer, in the library's form.

Marks such as `<tool_call>` may be tokens of their own. They are then written as tokens, and their spelling in other
tokens is not allowed in free text. So a mark in the answer's text is always the token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from service.constraints.constraint import Constraint, Lead
from service.constraints.unsound import simplified

#: JSON on one line, as `json.dumps` writes it: so the grammar forces as much as possible, and no answer is white space
JSON_OPTIONS: Final[Any] = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "lenient": False,
}

#: text -> token
TokenMarks = Mapping[str, int]


def calls_grammar(constraint: Constraint, content: str | None, marks: TokenMarks) -> str:
    """The grammar of a constraint of the kind `calls`. `content`: the grammar of an answer without calls, if any."""
    source = json.loads(constraint.source)
    opening, between, closing = source["texts"]
    more = f" ({_literal(between, marks)} call)*" if source["parallel"] else ""
    calls = f"call{more} {_literal(closing, marks)}"
    lead = constraint.lead
    unlike = () if lead is None or lead.begun else (lead.begin,)
    start, parts = _literal(opening, marks), []
    if content is not None:
        start, parts = f"@content | {start} calls", _named("content", content)
    elif not source["required"]:
        start = f"TEXT | {_up_to(opening, marks)} calls"
    else:
        start = f"{start} calls"
    rules = [
        f"start: {start}",
        f"calls: {calls}",
        f"TEXT: {_free((opening,), unlike)}",
        f"BEFORE: {_free((opening,), unlike) if opening in marks else _ending(opening, unlike)}",
        "call: " + " | ".join(f"call_{number}" for number in range(len(source["forms"]))),
    ]
    for number, (_, head, schema, tail) in enumerate(source["forms"]):
        options = {"x-guidance": JSON_OPTIONS, **simplified(schema)}
        rules.append(f"call_{number}: {_literal(head, marks)} arguments_{number} {_literal(tail, marks)}")
        rules.append(f"arguments_{number}: %json {json.dumps(options, ensure_ascii=False)}")
    return _joined("\n".join(rules), parts)


def with_lead(lead: Lead, grammar: str, marks: TokenMarks) -> str:
    """The grammar with a lead before it."""
    up_to = f"THOUGHT {_literal(lead.end, marks)}" if lead.end in marks else "THOUGHT"
    text = _free((lead.end,), ()) if lead.end in marks else _ending(lead.end, ())
    begin = "" if lead.begun else _literal(lead.begin, marks)
    start = "lead @answer" if lead.begun else "lead @answer | @answer"
    rules = [f"start: {start}", f"lead: {begin} {up_to} {_literal(lead.gap, marks)}", f"THOUGHT: {text}"]
    return _joined("\n".join(rules), _named("answer", grammar))


def _up_to(mark: str, marks: TokenMarks) -> str:
    """A free text or none, and the mark."""
    return f"BEFORE? {_literal(mark, marks)}" if mark in marks else "BEFORE"


def _literal(text: str, marks: TokenMarks) -> str:
    """A text, with tokens in the place of marks that are tokens."""
    longest_first = sorted(marks, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first)) or "(?!)"
    parts = re.split(f"({pattern})", text)
    written = [
        f"<[{marks[part]}]>" if part in marks else json.dumps(part, ensure_ascii=False) for part in parts if part
    ]
    return " ".join(written)


# --- patterns of free text ---------------------------------------------------------------------------


def _free(without: Sequence[str], unlike: Sequence[str]) -> str:
    """The pattern of texts without any of `without` in them, and with none of `unlike` at the beginning."""
    excluded = [f"(?s:.*){_pattern(text)}(?s:.*)" for text in without] + [
        f"\\s*{_pattern(text)}(?s:.*)" for text in unlike
    ]
    return " & ".join(["/(?s:.*)/", *(f"~/{pattern}/" for pattern in excluded)])


def _ending(mark: str, unlike: Sequence[str]) -> str:
    """The pattern of texts that end with the first mark in them."""
    excluded = [f"(?s:.*){_pattern(mark)}(?s:.+)"] + [f"\\s*{_pattern(text)}(?s:.*)" for text in unlike]
    return " & ".join([f"/(?s:.*){_pattern(mark)}/", *(f"~/{pattern}/" for pattern in excluded)])


def _pattern(text: str) -> str:
    return re.escape(text).replace("/", "\\/")


# --- grammars within each other ----------------------------------------------------------------------


def _named(name: str, grammar: str) -> list[dict[str, Any]]:
    """The parts of a grammar. The first one gets a name."""
    parts = json.loads(grammar)["grammars"] if grammar.startswith('{"grammars"') else [{"lark_grammar": grammar}]
    return [{**parts[0], "name": name}, *parts[1:]]


def _joined(first: str, parts: list[dict[str, Any]]) -> str:
    return json.dumps({"grammars": [{"lark_grammar": first}, *parts]}, ensure_ascii=False)
