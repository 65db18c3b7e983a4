"""Every relative link of every Markdown file leads to a file that exists, and to a heading where it names one."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _tracked(pattern: str) -> list[str]:
    """Files that git has, or would have with the next commit."""
    targets = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [name for name in targets.stdout.splitlines() if (ROOT / name).is_file()]


FILES = _tracked("*.md")


def links(text: str) -> Iterator[str]:
    """The targets of links and pictures, those of HTML too, without what stands in code."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"\]\(\s*([^)\s]+)[^)]*\)", prose)
    yield from re.findall(r"(?:src|srcset|href)=\"([^\"]+)\"", prose)


def anchors(text: str) -> set[str]:
    """The anchors of headings, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    targets: list[str] = []
    for heading in re.findall(r"^#+ +(.+?)\s*$", prose, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        targets.append(f"{name}-{targets.count(name)}" if name in targets else name)
    return set(targets)


def broken(file: Path) -> list[str]:
    """The links of a file that lead nowhere."""
    wrong = []
    for link in links(file.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("name", FILES)
def test_links_lead_somewhere(name: str) -> None:
    assert broken(ROOT / name) == []
