"""Names and sentences of `service`: one word for one thing, nouns for variables, and the field's words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in (ROOT / "service").rglob("*.py")}
TREES = {path: ast.parse(source) for path, source in SOURCES.items()}

#: the same thing in the protocols of two APIs
SHARED: frozenset[str] = frozenset()
#: pronouns and participles, which hide what a variable holds
PRONOUNS = re.compile(
    "_*(asked|begun|brought|found|given|heard|here|kept|known|one|others|own|places?|said|shown|told)_*"
)
#: words by which an engineer from vLLM, SGLang or Hugging Face looks for things
FIELD = (
    "AttentionBackend", "ChatTemplate", "CUDA graph", "detokenizer", "EngineCore", "Executor", "grammar",
    "logprobs", "max_num_seqs", "ModelRunner", "PrefixCache", "Quant", "reasoning parser", "Sampler", "SamplingParams",
    "Scheduler", "tensor.parallel", "tool parser", "weight update",
)  # fmt: skip
#: a habit of dense prose -> its pattern in a sentence, and the most sentences of `service` that have it
HABITS = {
    "a clause instead of a noun": (r"\b[Ww]hat(ever)?\b", 60),
    "an elided head": (r"`[\w.]+`: (of|by|for|in|to|from|with|at|on) ", 0),
    "a number without a name": (r"\b([Ss]o|as) (many|much)\b", 10),
    "a chain of reference": (r"\b(that|those) of\b", 15),
}


def definitions() -> dict[str, list[str]]:
    """Where each class and each alias of the top level is defined."""
    paths = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            match node:
                case ast.ClassDef(name=name):
                    paths[name].append(path)
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    if re.match(r"_?[A-Z][a-z]", name):
                        paths[name].append(path)
    return paths


def bindings() -> Iterator[tuple[str, str]]:
    """Every variable, parameter, attribute and function: its name, and where it gets it."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                    yield name, f"{path}:{node.lineno}"
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    yield name, f"{path}:{node.lineno}"


def sentences() -> Iterator[tuple[str, str]]:
    """The sentences of docstrings and comments, and their files."""
    for path, tree in TREES.items():
        nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, nodes)]
        tokens = tokenize.generate_tokens(io.StringIO(SOURCES[path]).readline)
        texts += [token.string.lstrip("#: ") for token in tokens if token.type == tokenize.COMMENT]
        for text in texts:
            for sentence in re.split(r"(?<=[.;])\s+", text):
                yield re.sub(r"\s+", " ", sentence), path


def test_a_class_name_has_one_meaning() -> None:
    assert {name: paths for name, paths in definitions().items() if len(paths) > 1 and name not in SHARED} == {}


def test_variables_are_called_by_nouns() -> None:
    assert [(name, where) for name, where in bindings() if PRONOUNS.fullmatch(name)] == []


@pytest.mark.parametrize("word", FIELD)
def test_the_fields_word_finds_its_place(word: str) -> None:
    pattern = re.compile(word.replace(" ", "[ _-]?"), re.IGNORECASE)
    assert any(pattern.search(source) for source in SOURCES.values())


@pytest.mark.parametrize("habit", HABITS)
def test_sentences_name_their_nouns(habit: str) -> None:
    pattern, most = HABITS[habit]
    having = [f"{path}: {sentence}" for sentence, path in sentences() if re.search(pattern, sentence)]
    assert len(having) <= most, "\n".join(having)
