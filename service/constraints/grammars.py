"""Compiles a constraint to a grammar, by llguidance, with limits on its time and size.

A wrong constraint is an InvalidRequest that says where: a path in a schema, a line of a grammar, an index in a pattern.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark
from msgspec.structs import replace

from service.constraints.calls import JSON_OPTIONS, calls_grammar, with_lead
from service.constraints.constraint import Constraint, ConstraintKind
from service.constraints.intersections import check_grammar, check_schema
from service.constraints.matcher import GuidanceGrammar
from service.constraints.unsound import simplified, unsound_part
from service.constraints.vocabulary import TokenVocabulary
from service.errors import ConstraintFailed, InvalidRequest

#: the largest size of a grammar in the library's units; and of a grammar with the schemas of many tools
_MAX_SIZE, _MAX_CALLS_SIZE = 20_000, 100_000

#: the most parts of a wrong schema that are compiled to find the error
_TRIES = 200


def compile_grammar(constraint: Constraint, vocabulary: TokenVocabulary) -> GuidanceGrammar:
    """The grammar of a constraint, whose first mask was computed. InvalidRequest if there is an error in it."""
    text = _text(constraint, vocabulary)
    if constraint.lead is not None:
        text = with_lead(constraint.lead, text, vocabulary.marks)
    matcher = _matcher(text, vocabulary, _MAX_CALLS_SIZE if constraint.kind == "calls" else _MAX_SIZE)
    if matcher.is_error():
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
        if reason := unsound_part(schema):
            raise _wrong(constraint, _of(tool) + reason)
        try:
            check_schema(schema)
        except ValueError as error:
            raise _wrong(constraint, f"{_of(tool)}{error}") from None
    content = None
    if constraint.content is not None:
        compile_grammar(constraint.content, vocabulary)  # so that an error names the content's field
        content = _text(constraint.content, vocabulary)
    try:
        if constraint.kind == "calls":
            return calls_grammar(constraint, content, vocabulary.marks)
        return _GRAMMARS[constraint.kind](constraint.source)
    except Exception as error:  # noqa: BLE001 - the converter of grammars raises many types
        raise _wrong(constraint, f"{error}") from None


def _schemas(constraint: Constraint) -> list[tuple[str, Any]]:
    """The schemas of a constraint, with the names of their tools."""
    if constraint.kind == "calls":
        return [(name, schema) for name, _, schema, _ in json.loads(constraint.source)["forms"]]
    return [("", json.loads(constraint.source))] if constraint.kind == "json" else []


def _of(tool: str) -> str:
    return f"the parameters of {tool!r}: " if tool else ""


def _json(source: str) -> str:
    schema = json.dumps(simplified(json.loads(source)), ensure_ascii=False)
    return LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)


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


def _wrong(constraint: Constraint, reason: str) -> InvalidRequest:
    line = " ".join(reason.split())[:400]
    return InvalidRequest(f"{constraint.param} cannot be used: {line}", param=constraint.param)


# --- the path of an error in a schema  -------------------------------------------------------------


def _reason(constraint: Constraint, matcher: LLMatcher, vocabulary: TokenVocabulary) -> str:
    """Why a grammar is wrong. For a schema, with the path of the innermost part that is wrong by itself."""
    for tool, schema in _schemas(constraint):
        if constraint.kind == "json":
            return _path(schema, vocabulary) + matcher.get_error()
        alone = _matcher(_json(json.dumps(schema)), vocabulary)
        if alone.is_error():
            return _of(tool) + _path(schema, vocabulary) + alone.get_error()
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
