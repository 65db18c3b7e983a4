"""Pages for readers: the files and classes that they name exist, and their sentences name their nouns.

Docstrings and comments name files, too.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from service import errors
from tests.sources import ROOT, parsed

GENERATED = {"settings.md", "metrics.md", "commands.md"}
PAGES = {
    name: re.sub(r"^```.*?^```", "", (ROOT / name).read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for name in [
        *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "dev/lab/README.md"),
        *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in GENERATED),
    ]
}
FOLDERS = ("mrp_serve", "service", "tests", "training", "loadtest", "benchmarks", "dev", "docs", "deploy")
#: a file of code or a page by its name or path, or a path from one of our folders on
NAMED_FILE = re.compile(
    rf"(?<![\w/.*{{<>~-])(?:(?:\w[\w.-]*/)*[\w-]+\.(?:py|md|sh)\b|(?:{'|'.join(FOLDERS)})/[\w./-]*\w)(?![\w(*<{{])"
)
#: files of other projects, and files that programs write
FOREIGN = re.compile(
    r"modeling\w*\.py|(ray|srt|scripts|configurations|benchmark|training/model)/.*|benchmarks/serve\.py|paper\.md"
    r"|(idlm_blockN|loss_functions|services|proxy|agent|node|identity)\.py"
)
#: a habit of dense prose -> its pattern in a sentence that is no question
HABITS = {
    "a clause instead of a noun": r"\b[Ww]hat(ever)?\b",
    "an elided head": r"`[^`]+`: (of|by|for|in|to|from|with|at|on) ",
    "a number without a name": r"\b([Ss]o|[Aa]s) (many|much)\b",
    "a chain of reference": r"\b([Tt]hat|[Tt]hose) (of|that|which)\b|\bof (which|whose)\b",
}


@cache
def paths() -> list[str]:
    """All files and folders of the repository, each with a slash before."""
    files = [*ROOT.glob("*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    return [f"/{path.relative_to(ROOT)}" for path in files]


def exists(name: str) -> bool:
    """Whether a file or a folder has this name. A path may leave out its first folders."""
    return any(path.endswith(f"/{name}") for path in paths())


def missing_modules(text: str) -> list[str]:
    """The modules in code spans that no file has."""
    return [name for name in re.findall(r"`([\w/]+\.py)`", text) if not exists(name)]


def missing_files(text: str) -> list[str]:
    return [name for name in NAMED_FILE.findall(text) if not FOREIGN.fullmatch(name) and not exists(name)]


def prose(source: str) -> str:
    """The comments and docstrings of a module."""
    parts, begins = [], True  # whether a statement begins
    for kind, text, *_ in tokenize.generate_tokens(io.StringIO(source).readline):
        if kind == tokenize.COMMENT or (kind == tokenize.STRING and begins):
            parts.append(text)
        elif kind not in {tokenize.NL, tokenize.INDENT, tokenize.DEDENT}:
            begins = kind == tokenize.NEWLINE
    return "\n".join(parts)


def missing_classes(text: str) -> Iterator[str]:
    """The classes in code spans that `service` lacks, or lacks in the module or folder in brackets behind them."""
    classes = [
        (f"/{path}", node.name)
        for path, tree in parsed("service").items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    ]
    for spans, path in re.findall(r"((?:`[A-Z][^`]*`(?:, )?)+)(?: \(`([\w/]+(?:\.py|/))`\))?", text):
        for name in re.findall(r"`([A-Z]\w*[a-z]\w*)\b[^`]*`", spans):
            if not any(name == other and f"/{path}" in module for module, other in classes):
                yield f"{name} ({path})" if path else name


def sentences(text: str) -> list[str]:
    """The sentences of a page, one for each cell of a table, without questions."""
    lines = re.sub(r"\n(?![\n|#*-]|\d+\.)", " ", text)
    parts = re.split(r"(?<=[.;?])\s+|\n|\|", re.sub(r"\]\([^)]*\)", "]", lines))
    return [part for part in parts if not part.rstrip(" *)").endswith("?")]


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith("dev")])  # the lab names deleted code
def test_modules_exist(page: str) -> None:
    assert missing_modules(PAGES[page]) == []


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_of_a_page_exist(page: str) -> None:
    assert missing_files(PAGES[page]) == []


@pytest.mark.parametrize("folder", ["service", "tests", "loadtest", "benchmarks", "dev"])
def test_files_in_comments_exist(folder: str) -> None:
    sources = {path: path.read_text("utf-8") for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)}
    texts = {path: prose(source) for path, source in sources.items() if NAMED_FILE.search(source)}
    assert {str(path): names for path, text in texts.items() if (names := missing_files(text))} == {}


def test_classes_exist() -> None:
    codes = PAGES["docs/glossary.md"].split("## Names in the code\n", 1)[1]
    ours = re.sub(r"^(\| [^|]*\|).*$", r"\1", codes, flags=re.MULTILINE)  # the first column
    assert list(missing_classes(ours)) == []
    assert list(missing_classes(PAGES["ARCHITECTURE.md"])) == []


def test_codes_of_errors_exist() -> None:
    codes = {kind.code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "code")}
    rows = re.findall(r"^\| \d{3} (`\w+`(?:, `\w+`)*) \|", "\n".join(PAGES.values()), re.MULTILINE)
    assert rows
    assert set(re.findall(r"\w+", " ".join(rows))) <= codes | {"not_found"}  # no class: FastAPI's own


def test_a_missing_name_is_found() -> None:
    assert missing_modules("`gone.py` `engine/engine.py` `service/gone/engine.py`") == [
        "gone.py",
        "service/gone/engine.py",
    ]
    source = """'see `gone.py` and docs/gone.md'\nx = "absent.py"  # engine.py, tests/gone, modeling_x.py\n"""
    assert missing_files(prose(source)) == ["gone.py", "docs/gone.md", "tests/gone"]
    text = "`Gone` `Engine(a)` `Engine`, `Lost.x` (`engine/`) `Engine` (`decode/`) `GPU`"
    assert list(missing_classes(text)) == ["Gone", "Lost (engine/)", "Engine (decode/)"]


@pytest.mark.parametrize("habit", HABITS)
def test_sentences_name_their_nouns(habit: str) -> None:
    matches = [
        f"{page}: {part}" for page, text in PAGES.items() for part in sentences(text) if re.search(HABITS[habit], part)
    ]
    assert matches == []
