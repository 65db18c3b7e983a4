"""Names and sentences: one word for one thing, nouns for variables, and the field's words."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.sources import ROOT, parsed

SOURCES = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in (ROOT / "service").rglob("*.py")}
#: folders whose variables are nouns, too
OTHERS = ("mrp_serve", "tests", "training", "loadtest", "benchmarks", "dev")

#: pronouns and participles, which hide what a variable holds
PRONOUNS = re.compile(
    "_*(asked|begun|brought|found|given|heard|here|kept|known|one|others|own|places?|said|shown|told)_*"
)
#: the beginnings of a test's name that hide its subject
SUBJECTLESS = re.compile("test_(what|who|nobody|how|whoever|whatever)_")
#: a pronoun in a source where a name may be bound, or such a beginning; other sources need not be parsed
SUSPECT = re.compile(rf"(?<!\w){PRONOUNS.pattern}\s*([=:,)\](]|\bin\b)|{SUBJECTLESS.pattern}|\bas {PRONOUNS.pattern}\b")
#: the most arguments of a call that a reader can tell apart without names; kernels of Triton take more
MAX_POSITIONAL = 6
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
    for path, tree in parsed("service").items():
        for node in tree.body:
            match node:
                case ast.ClassDef(name=name):
                    paths[name].append(path)
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    if re.match(r"_?[A-Z][a-z]", name):
                        paths[name].append(path)
    return paths


def bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every variable, parameter, attribute and function: its name, and the line of its definition."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno


def sentences() -> Iterator[tuple[str, str]]:
    """The sentences of docstrings and comments, and their files."""
    for path, tree in parsed("service").items():
        nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, nodes)]
        tokens = tokenize.generate_tokens(io.StringIO(SOURCES[path]).readline)
        texts += [token.string.lstrip("#: ") for token in tokens if token.type == tokenize.COMMENT]
        for text in texts:
            for sentence in re.split(r"(?<=[.;])\s+", text):
                yield re.sub(r"\s+", " ", sentence), path


def test_a_class_name_has_one_meaning() -> None:
    assert {name: paths for name, paths in definitions().items() if len(paths) > 1} == {}


@pytest.mark.parametrize("folder", ["service", *OTHERS])
def test_variables_are_called_by_nouns(folder: str) -> None:
    pronouns = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if SUSPECT.search(source := path.read_text(encoding="utf-8"))
        for name, line in bindings(ast.parse(source))
        if PRONOUNS.fullmatch(name) or SUBJECTLESS.match(name)
    ]
    assert pronouns == []


def test_calls_name_their_arguments() -> None:
    crowded = [
        f"{path}:{node.lineno} {ast.unparse(node.func)}"
        for path, tree in parsed("service").items()
        if "kernels" not in path and "triton" not in path
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and len(node.args) > MAX_POSITIONAL and not isinstance(node.func, ast.Subscript)
    ]
    assert crowded == []


@pytest.mark.parametrize("word", FIELD)
def test_the_fields_word_finds_its_place(word: str) -> None:
    pattern = re.compile(word.replace(" ", "[ _-]?"), re.IGNORECASE)
    assert any(pattern.search(source) for source in SOURCES.values())


def test_sentences_name_their_nouns() -> None:
    having = defaultdict(list)
    for sentence, path in sentences():
        for habit, (pattern, _) in HABITS.items():
            if re.search(pattern, sentence):
                having[habit].append(f"{path}: {sentence}")
    assert {habit: lines for habit, lines in having.items() if len(lines) > HABITS[habit][1]} == {}
