"""The reference pages of docs/ equal those made from the code: whole files are compared."""

from pathlib import Path

import pytest

from dev import reference

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["settings.md", "metrics.md", "commands.md"])
def test_the_page_in_the_repository_is_the_one_that_the_code_makes(name):
    assert (DOCS / name).read_text("utf-8") == reference.pages()[name], "run `make docs`"


def test_pages_depend_on_no_environment(monkeypatch):
    before = reference.pages()
    monkeypatch.setenv("MRP_SERVE_MAX_NUM_SEQS", "7")
    assert reference.pages() == before
