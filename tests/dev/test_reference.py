"""The reference pages of docs/ equal those made from the code: whole files are compared."""

from pathlib import Path

import pytest

from dev import reference
from service.cli.main import app
from service.settings.settings import Settings
from service.telemetry.metrics import METRICS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["settings.md", "metrics.md", "commands.md"])
def test_the_page_in_the_repository_is_the_one_that_the_code_makes(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == reference.pages()[name], "run `make docs`"


def test_every_setting_metric_and_command_has_a_row() -> None:
    pages = reference.pages()
    assert [name for name in Settings.model_fields if f"| `{name}` | " not in pages["settings.md"]] == []
    assert [metric.name for metric in METRICS if f"| `{metric.name}` | " not in pages["metrics.md"]] == []
    assert pages["commands.md"].count("| `mrp-serve ") == len(app.registered_commands)


def test_pages_depend_on_no_machine_and_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = reference.pages()
    monkeypatch.setenv("MRP_SERVE_MAX_NUM_SEQS", "7")
    assert reference.pages() == before
    assert not any(str(DOCS.parent) in page for page in before.values())


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1}, "whole number, 1 or more"),
        ({"type": "integer", "minimum": 1, "maximum": 9}, "whole number, 1 to 9"),
        ({"type": "number", "exclusiveMinimum": 0}, "number, more than 0"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "number, more than 0, at most 1"),
        ({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}]}, "whole number, 1 or more, `auto`"),
        ({"anyOf": [{"type": "string", "format": "path"}, {"type": "null"}]}, "path"),
        ({"enum": ["a", "b"], "type": "string"}, "`a`, `b`"),
    ],
)
def test_the_values_of_a_setting_in_words(schema: dict[str, object], words: str) -> None:
    assert reference._values(schema) == words
