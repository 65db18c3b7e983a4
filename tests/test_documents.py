"""Pages for readers: the modules and classes that they name exist, and their sentences name their nouns."""

import ast
import re
from collections.abc import Iterator

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
MODULES = [f"/{path.relative_to(ROOT)}" for path in ROOT.rglob("*.py")]
#: a habit of dense prose -> its pattern in a sentence that is no question
HABITS = {
    "a clause instead of a noun": r"\b[Ww]hat(ever)?\b",
    "an elided head": r"`[^`]+`: (of|by|for|in|to|from|with|at|on) ",
    "a number without a name": r"\b([Ss]o|[Aa]s) (many|much)\b",
    "a chain of reference": r"\b([Tt]hat|[Tt]hose) (of|that|which)\b|\bof (which|whose)\b",
}


def missing_modules(text: str) -> list[str]:
    """The modules in code spans that no file has. A path may leave out its first folders."""
    return [name for name in re.findall(r"`([\w/]+\.py)`", text) if not any(f.endswith(f"/{name}") for f in MODULES)]


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
    text = "`Gone` `Engine(a)` `Engine`, `Lost.x` (`engine/`) `Engine` (`decode/`) `GPU`"
    assert list(missing_classes(text)) == ["Gone", "Lost (engine/)", "Engine (decode/)"]


@pytest.mark.parametrize("habit", HABITS)
def test_sentences_name_their_nouns(habit: str) -> None:
    matches = [
        f"{page}: {part}" for page, text in PAGES.items() for part in sentences(text) if re.search(HABITS[habit], part)
    ]
    assert matches == []
