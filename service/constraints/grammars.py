"""Compiles a constraint to a grammar, by llguidance, with limits on its time and size.

A wrong constraint is an InvalidRequest with the position of the error: a path in a schema, a line of a grammar, or an
index in a pattern.

Marks of tool calls such as `<tool_call>` may be single tokens. They are then written as tokens, and their spelling in
other tokens is not allowed in free text. So a mark in the answer's text is always the token.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark
from msgspec.structs import replace

from service.constraints.checks import check_grammar, check_schema
from service.constraints.constraint import Constraint, ConstraintKind, Lead
from service.constraints.finite_patterns import with_names_of_finite_patterns
from service.constraints.json_schema import without_patterns
from service.constraints.matcher import GuidanceGrammar
from service.constraints.structural_tags import GrammarWriter, TagRules, schemas_in
from service.constraints.vocabulary import TokenVocabulary
from service.errors import ConstraintFailed, InvalidRequest

#: the largest size of a grammar in the library's units; and of a grammar with the schemas of many tools
_MAX_SIZE, _MAX_CALLS_SIZE = 20_000, 100_000

#: the most parts of a wrong schema that are compiled to find the error
_TRIES = 200

#: JSON on one line, as `json.dumps` writes it. So the grammar forces most tokens, and no answer is white space.
_JSON_OPTIONS: Final[Any] = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "lenient": False,
}

_ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}
#: the indices of the schema of a tool and of its strictness, in a constraint's source
_SCHEMA, _STRICT = 2, 4

_log = logging.getLogger(__name__)

#: text -> token
TokenMarks = Mapping[str, int]


def compile_grammar(constraint: Constraint, vocabulary: TokenVocabulary) -> GuidanceGrammar:
    """The grammar of a constraint, whose first mask was computed. InvalidRequest if there is an error in it."""
    constraint = _with_names(_with_lenient_tools(constraint, _is_unsafe), vocabulary)
    text = _text(constraint, vocabulary)
    if constraint.lead is not None:
        text = _with_lead(constraint.lead, text, vocabulary.marks)
    matcher = _matcher(text, vocabulary, _MAX_CALLS_SIZE if constraint.kind == "calls" else _MAX_SIZE)
    if matcher.is_error():
        lenient = _with_lenient_tools(constraint, lambda schema: _schema_matcher(schema, vocabulary).is_error())
        if lenient != constraint:
            return compile_grammar(lenient, vocabulary)
        if constraint.lead is not None:  # the error is clearer without the lead
            compile_grammar(replace(constraint, lead=None), vocabulary)
        raise _wrong(constraint, _reason(constraint, matcher, vocabulary))
    grammar = GuidanceGrammar(matcher, vocabulary, constraint.param)
    try:
        matcher_at_start = grammar.open()
        matcher_at_start.mask(matcher_at_start.forced(()))
    except ConstraintFailed as error:
        raise InvalidRequest(error.message, param=constraint.param) from None
    return grammar


def _text(constraint: Constraint, vocabulary: TokenVocabulary) -> str:
    """The grammar as the library takes it, without the lead."""
    for tool, schema in _schemas(constraint):
        try:
            check_schema(schema)
        except ValueError as error:
            raise _wrong(constraint, f"{_tool_prefix(tool)}{error}") from None
    content = None
    if constraint.content is not None:
        compile_grammar(constraint.content, vocabulary)  # so that an error names the content's field
        content = _text(constraint.content, vocabulary)
    try:
        if constraint.kind == "calls":
            return _calls_grammar(constraint, content, vocabulary.marks)
        if constraint.kind == "tags":
            return _tags_grammar(json.loads(constraint.source), vocabulary.marks)
        return _GRAMMARS[constraint.kind](constraint.source)
    except Exception as error:  # noqa: BLE001 - the converter of grammars raises many types
        raise _wrong(constraint, f"{error}") from None


def _with_lenient_tools(constraint: Constraint, is_wrong: Callable[[Any], bool]) -> Constraint:
    """The constraint with other schemas for wrong ones of tools that are not strict: without patterns, or any object.

    So one tool never refuses the others.
    """
    if constraint.kind != "calls":
        return constraint
    source = json.loads(constraint.source)
    wrong = [form for form in source["forms"] if not form[_STRICT] and is_wrong(form[_SCHEMA])]
    for form in wrong:
        plain = without_patterns(form[_SCHEMA])
        form[_SCHEMA] = _ANY_OBJECT if is_wrong(plain) else plain
    if not wrong:
        return constraint
    _log.warning("%d of %d tools have wrong schemas, which are not enforced", len(wrong), len(source["forms"]))
    return replace(constraint, source=json.dumps(source, ensure_ascii=False))


def _with_names(constraint: Constraint, vocabulary: TokenVocabulary) -> Constraint:
    """The constraint with properties instead of patterns that allow no other names."""
    if constraint.content is not None:
        constraint = replace(constraint, content=_with_names(constraint.content, vocabulary))
    if constraint.kind not in {"json", "calls"} or '"patternProperties"' not in constraint.source:
        return constraint
    source = json.loads(constraint.source)

    def rewritten(schema: Any) -> Any:
        return with_names_of_finite_patterns(schema, partial(_is_empty, vocabulary))

    if constraint.kind == "calls":
        for form in source["forms"]:
            form[_SCHEMA] = rewritten(form[_SCHEMA])
    else:
        source = rewritten(source)
    return replace(constraint, source=json.dumps(source, ensure_ascii=False))


def _is_empty(vocabulary: TokenVocabulary, pattern: str, names: list[str]) -> bool:
    """Whether a pattern matches no other texts than the names, each as a whole."""
    expression = " & ".join([f"/{_slashed(pattern)}/", *(f"~/{_pattern(name)}/" for name in names)])
    matcher = _matcher(LLMatcher.grammar_from_lark(f"start: TEXT\nTEXT: {expression}"), vocabulary)
    if matcher.is_error():
        return False
    matcher.compute_bitmask()
    return matcher.is_error()


def _is_unsafe(schema: Any) -> bool:
    try:
        check_schema(schema)
    except ValueError:
        return True
    return False


def _schemas(constraint: Constraint) -> list[tuple[str, Any]]:
    """The schemas of a constraint, with the names of their tools."""
    if constraint.kind == "calls":
        return [(name, schema) for name, _, schema, *_ in json.loads(constraint.source)["forms"]]
    if constraint.kind == "tags":
        return [("", schema) for schema in schemas_in(json.loads(constraint.source))]
    return [("", json.loads(constraint.source))] if constraint.kind == "json" else []


def _tool_prefix(tool: str) -> str:
    return f"the parameters of {tool!r}: " if tool else ""


def _json(source: str) -> str:
    return LLMatcher.grammar_from_json_schema(source, overrides=_JSON_OPTIONS)


def _choice(source: str) -> str:
    texts = (json.dumps(text, ensure_ascii=False) for text in json.loads(source))
    return LLMatcher.grammar_from_lark("start: " + " | ".join(texts))


def _grammar(source: str) -> str:
    text = any_to_lark(source)
    check_grammar(text)
    return LLMatcher.grammar_from_lark(text)


_GRAMMARS: Mapping[ConstraintKind, Callable[[str], str]] = {
    "json": _json,
    "regex": LLMatcher.grammar_from_regex,
    "choice": _choice,
    "grammar": _grammar,
}


def _matcher(grammar: str, vocabulary: TokenVocabulary, size: int = _MAX_SIZE) -> LLMatcher:
    limits = LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=500_000,
        step_lexer_fuel=50_000,
        step_max_items=3_000,
        max_lexer_states=20_000,
        max_grammar_size=size,
        verbose_errors=False,
    )
    return LLMatcher(vocabulary.tokens, grammar, log_level=0, limits=limits)


def _schema_matcher(schema: Any, vocabulary: TokenVocabulary) -> LLMatcher:
    return _matcher(_json(json.dumps(schema)), vocabulary)


def _wrong(constraint: Constraint, reason: str) -> InvalidRequest:
    if "coerce_one_of" in reason:  # an option of the library, which a request cannot set
        reason = reason.partition("oneOf")[0] + "the parts of oneOf do not exclude each other"
    line = " ".join(reason.split())[:400]
    return InvalidRequest(f"{constraint.param} cannot be used: {line}", param=constraint.param)


# --- the path of an error in a schema --------------------------------------------------------------


def _reason(constraint: Constraint, matcher: LLMatcher, vocabulary: TokenVocabulary) -> str:
    """The error of a grammar. For a schema, with the path of the innermost part that is wrong by itself."""
    for tool, schema in _schemas(constraint):
        if constraint.kind == "json":
            return _path(schema, vocabulary) + matcher.get_error()
        schema_matcher = _schema_matcher(schema, vocabulary)
        if schema_matcher.is_error():
            return _tool_prefix(tool) + _path(schema, vocabulary) + schema_matcher.get_error()
    return matcher.get_error()


def _path(root: Any, vocabulary: TokenVocabulary) -> str:
    part, path, tries = root, "", _TRIES
    descends = True
    while descends:
        descends = False
        for name, child in _subschemas(part):
            tries -= 1
            if tries >= 0 and _is_wrong(root, child, vocabulary):
                part, path, descends = child, f"{path}/{name}", True
                break
    return f"at {path or '/'}: "


def _is_wrong(root: Mapping[str, Any], part: Any, vocabulary: TokenVocabulary) -> bool:
    definitions = {name: root[name] for name in ("$defs", "definitions") if isinstance(part, dict) and name in root}
    try:
        grammar = _json(json.dumps({**definitions, **part} if isinstance(part, dict) else part))
    except ValueError:
        return True
    return _matcher(grammar, vocabulary).is_error()


def _subschemas(schema: Any) -> Iterator[tuple[str, Any]]:
    """(path, schema) of the schemas directly within a schema."""
    if not isinstance(schema, dict):
        return
    for name in ("properties", "patternProperties", "$defs", "definitions"):
        if isinstance(schema.get(name), dict):
            yield from ((f"{name}/{key}", value) for key, value in schema[name].items())
    for name in ("anyOf", "allOf", "oneOf", "prefixItems"):
        if isinstance(schema.get(name), list):
            yield from ((f"{name}/{index}", value) for index, value in enumerate(schema[name]))
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield name, schema[name]


# --- tool calls, and the lead before an answer -----------------------------------------------------


def _calls_grammar(constraint: Constraint, content: str | None, marks: TokenMarks) -> str:
    """The grammar of a constraint of the kind `calls`. `content`: the grammar of an answer without calls, if any."""
    source = json.loads(constraint.source)
    opening, between, closing = source["texts"]
    more = f" ({_literal(between, marks)} call)*" if source["parallel"] else ""
    calls = f"call{more} {_literal(closing, marks)}"
    lead = constraint.lead
    unlike = () if lead is None or lead.in_prompt else (lead.begin,)
    start, parts = _literal(opening, marks), []
    if content is not None:
        start, parts = f"@content | {start} calls", _with_name("content", content)
    elif not source["required"]:
        start = f"TEXT | {_up_to(opening, marks)} calls"
    else:
        start = f"{start} calls"
    rules = [
        f"start: {start}",
        f"calls: {calls}",
        f"TEXT: {_free((opening,), unlike)}",
        f"BEFORE: {_free((opening,), unlike) if opening in marks else _ending(opening, unlike=unlike)}",
        "call: " + " | ".join(f"call_{i}" for i in range(len(source["forms"]))),
    ]
    for i, (_, head, schema, tail, _) in enumerate(source["forms"]):
        rules.append(f"call_{i}: {_literal(head, marks)} arguments_{i} {_literal(tail, marks)}")
        rules.append(f"arguments_{i}: {_json_rule(schema)}")
    return _joined("\n".join(rules), parts)


def _tags_grammar(form: Mapping[str, Any], marks: TokenMarks) -> str:
    """The grammar of a structural tag."""
    writer = GrammarWriter(
        literal=partial(_literal, marks=marks),
        text=_free,
        ending=_ending,
        has_mark=lambda text: text.startswith(tuple(marks)),
        schema=_json_rule,
        pattern=lambda pattern: f"/{_slashed(pattern)}/",
    )
    rules = TagRules(writer)
    start = rules.expression(form)
    parts = [part for name, text in rules.grammars.items() for part in _with_name(name, _grammar(text))]
    text = "\n".join([f"start: {start}", *rules.rules])
    check_grammar(text)
    return _joined(text, parts)


def _with_lead(lead: Lead, grammar: str, marks: TokenMarks) -> str:
    """The grammar with a lead before it."""
    up_to = f"THOUGHT {_literal(lead.end, marks)}" if lead.end in marks else "THOUGHT"
    text = _free((lead.end,), ()) if lead.end in marks else _ending(lead.end)
    begin = "" if lead.in_prompt else _literal(lead.begin, marks)
    start = "lead @answer" if lead.in_prompt else "lead @answer | @answer"
    rules = [f"start: {start}", f"lead: {begin} {up_to} {_literal(lead.gap, marks)}", f"THOUGHT: {text}"]
    return _joined("\n".join(rules), _with_name("answer", grammar))


def _up_to(mark: str, marks: TokenMarks) -> str:
    """A free text or none, and the mark."""
    return f"BEFORE? {_literal(mark, marks)}" if mark in marks else "BEFORE"


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
    return f"%json {json.dumps({'x-guidance': _JSON_OPTIONS, **schema}, ensure_ascii=False)}"


def _free(without: Sequence[str], unlike: Sequence[str] = ()) -> str:
    """The pattern of texts without any of `without` in them, and with none of `unlike` at the beginning."""
    excluded = [f"(?s:.*){_pattern(text)}(?s:.*)" for text in without]
    return _excluding("(?s:.*)", excluded, unlike)


def _ending(mark: str, without: Sequence[str] = (), unlike: Sequence[str] = ()) -> str:
    """The pattern of texts that end with the first mark in them. `without`, `unlike`: as above."""
    excluded = [f"(?s:.*){_pattern(mark)}(?s:.+)", *(f"(?s:.*){_pattern(text)}(?s:.*)" for text in without)]
    return _excluding(f"(?s:.*){_pattern(mark)}", excluded, unlike)


def _excluding(pattern: str, excluded: Sequence[str], unlike: Sequence[str]) -> str:
    excluded = [*excluded, *(f"\\s*{_pattern(text)}(?s:.*)" for text in unlike)]
    return " & ".join([f"/{pattern}/", *(f"~/{other}/" for other in excluded)])


def _pattern(text: str) -> str:
    return _slashed(re.escape(text))


def _slashed(pattern: str) -> str:
    """A pattern between the slashes of a grammar."""
    return re.sub(r"\\.|/", lambda match: "\\/" if match[0] == "/" else match[0], pattern, flags=re.DOTALL)


def _with_name(name: str, grammar: str) -> list[dict[str, Any]]:
    """The parts of a grammar. The first one gets a name."""
    parts = json.loads(grammar)["grammars"] if grammar.startswith('{"grammars"') else [{"lark_grammar": grammar}]
    return [{**parts[0], "name": name}, *parts[1:]]


def _joined(first: str, parts: list[dict[str, Any]]) -> str:
    return json.dumps({"grammars": [{"lark_grammar": first}, *parts]}, ensure_ascii=False)
