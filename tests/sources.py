"""The sources of this repository, each parsed once."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@cache
def parsed(folder: str) -> dict[str, ast.Module]:
    """The modules in a folder, by their paths within the repository."""
    files = sorted((ROOT / folder).rglob("*.py"))
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text(encoding="utf-8")) for file in files}
