"""Compiles a constraint to a grammar, by llguidance, with limits on its time and size.

A wrong constraint is an InvalidRequest with the position of the error: a path in a schema, a line of a grammar, or an
index in a pattern.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits
from msgspec.structs import replace

from service.constraints.checks import check_schema
from service.constraints.constraint import Constraint, ConstraintKind
from service.constraints.finite_patterns import with_names_of_finite_patterns
from service.constraints.lark import (
    JSON_OPTIONS,
    calls_grammar,
    lark_grammar,
    slashed,
    tags_grammar,
    text_pattern,
    with_preamble,
)
from service.constraints.matcher import GuidanceGrammar
from service.constraints.repair import repaired
from service.constraints.structural_tags import schemas_in
from service.constraints.vocabulary import TokenVocabulary
from service.errors import ConstraintFailed, InvalidRequest

#: the largest size of a grammar in the library's units; and of a grammar with the schemas of many tools
_MAX_SIZE, _MAX_CALLS_SIZE = 20_000, 100_000

#: the most parts of a wrong schema that are compiled to find the error
_TRIES = 200

_ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}


def compile_grammar(constraint: Constraint, vocabulary: TokenVocabulary) -> GuidanceGrammar:
    """The grammar of a constraint, whose first mask was computed. InvalidRequest if there is an error in it."""
    constraint = _with_names(_with_lenient_tools(constraint, _is_unsafe), vocabulary)
    text = _text(constraint, vocabulary)
    if constraint.preamble is not None:
        text = with_preamble(constraint.preamble, text, vocabulary.marks)
    matcher = _matcher(text, vocabulary, _MAX_CALLS_SIZE if constraint.kind == "calls" else _MAX_SIZE)
    if matcher.is_error():
        lenient = _with_lenient_tools(constraint, partial(_is_refused, vocabulary))
        if lenient != constraint:
            return compile_grammar(lenient, vocabulary)
        if constraint.preamble is not None:  # the error is clearer without the preamble
            compile_grammar(replace(constraint, preamble=None), vocabulary)
        raise _wrong(constraint, _reason(constraint, matcher, vocabulary))
    grammar = GuidanceGrammar(matcher, vocabulary, constraint)
    try:
        matcher_at_start = grammar.open()
        matcher_at_start.mask(matcher_at_start.forced(()))
    except ConstraintFailed as error:
        raise InvalidRequest(error.message, param=constraint.param) from None
    return grammar


def _text(constraint: Constraint, vocabulary: TokenVocabulary) -> str:
    """The grammar as the library takes it, without the preamble."""
    for subject, schema in _schemas(constraint):
        try:
            check_schema(schema)
        except ValueError as error:
            raise _wrong(constraint, f"{subject}{error}") from None
    content = None
    if constraint.content is not None:
        compile_grammar(constraint.content, vocabulary)  # so that an error names the content's field
        content = _text(constraint.content, vocabulary)
    try:
        if constraint.kind == "calls":
            return calls_grammar(constraint, content, vocabulary.marks)
        if constraint.kind == "tags":
            return tags_grammar(json.loads(constraint.source), vocabulary.marks)
        return _GRAMMARS[constraint.kind](constraint.source)
    except Exception as error:  # noqa: BLE001 - the converter of grammars raises many types
        raise _wrong(constraint, f"{error}") from None


def _with_lenient_tools(constraint: Constraint, is_wrong: Callable[[Any], bool]) -> Constraint:
    """The constraint without the wrong parts of tools that are not strict. So they never refuse anything else."""
    if constraint.kind != "calls":
        return constraint
    source, ignored = json.loads(constraint.source), list(constraint.ignored)
    wrong = [form for form in source["forms"] if not form["strict"] and is_wrong(form["schema"])]
    for form in wrong:
        schema, removed = repaired(form["schema"], is_wrong)
        form["schema"] = {**_ANY_OBJECT, **schema}
        ignored += [f"{form['field']}.{keyword}" for keyword in removed]
        if is_wrong(form["schema"]):
            form["schema"] = _ANY_OBJECT
            ignored.append(form["field"])
    if not wrong:
        return constraint
    source = json.dumps(source, ensure_ascii=False)
    return replace(constraint, source=source, ignored=tuple(dict.fromkeys(ignored)))


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
            form["schema"] = rewritten(form["schema"])
    else:
        source = rewritten(source)
    return replace(constraint, source=json.dumps(source, ensure_ascii=False))


def _is_empty(vocabulary: TokenVocabulary, pattern: str, names: list[str]) -> bool:
    """Whether a pattern matches no other texts than the names, each as a whole."""
    expression = " & ".join([f"/{slashed(pattern)}/", *(f"~/{text_pattern(name)}/" for name in names)])
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


def _is_refused(vocabulary: TokenVocabulary, schema: Any) -> bool:
    return _is_unsafe(schema) or _schema_matcher(schema, vocabulary).is_error()


def _schemas(constraint: Constraint) -> list[tuple[str, Any]]:
    """The schemas of a constraint. Each has the beginning of an error about it: the tool to which it belongs."""
    if constraint.kind == "calls":
        forms = json.loads(constraint.source)["forms"]
        return [(f"the parameters of {form['name']!r}: ", form["schema"]) for form in forms]
    if constraint.kind == "tags":
        return [("", schema) for schema in schemas_in(json.loads(constraint.source))]
    return [("", json.loads(constraint.source))] if constraint.kind == "json" else []


def _json(source: str) -> str:
    return LLMatcher.grammar_from_json_schema(source, overrides=JSON_OPTIONS)


def _choice(source: str) -> str:
    texts = (json.dumps(text, ensure_ascii=False) for text in json.loads(source))
    return LLMatcher.grammar_from_lark("start: " + " | ".join(texts))


_GRAMMARS: Mapping[ConstraintKind, Callable[[str], str]] = {
    "json": _json,
    "regex": LLMatcher.grammar_from_regex,
    "choice": _choice,
    "grammar": lark_grammar,
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
    for subject, schema in _schemas(constraint):
        schema_matcher = _schema_matcher(schema, vocabulary)
        if schema_matcher.is_error():
            return subject + _path(schema, vocabulary) + schema_matcher.get_error()
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
        return _schema_matcher({**definitions, **part} if isinstance(part, dict) else part, vocabulary).is_error()
    except ValueError:
        return True


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
