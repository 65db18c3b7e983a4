"""README's tables say what the code has: every metric, every mode and its knobs, every setting."""

import re
from dataclasses import fields
from pathlib import Path

from service.api.metrics import METRICS
from service.decode.registry import MODES
from service.settings import Settings

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def rows(heading):
    """The cells of the first table below a heading."""
    section = README.split(f"## {heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)[0]
    return [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table.splitlines()[2:]]


def test_every_metric_stands_in_the_table():
    expected = {
        f"`{metric.name}{{{','.join(metric.labels)}}}`" if metric.labels else f"`{metric.name}`" for metric in METRICS
    }
    found = [row[0] for row in rows("Metrics")]
    assert sorted(found) == sorted(expected)
    kinds = {row[0].strip("`").partition("{")[0]: row[1] for row in rows("Metrics")}
    assert kinds == {metric.name: metric.kind for metric in METRICS}


def test_every_mode_stands_in_the_table_with_its_knobs():
    found = {row[0]: row[1] for row in rows("Modes")}
    assert found == {f"`{name}`": ", ".join(f"`{f.name}`" for f in fields(params)) for name, params in MODES.items()}


def test_every_setting_stands_in_the_table_with_its_default():
    table = {row[0].strip("`"): row[1:] for row in rows("Settings")}
    assert list(table) == list(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        default, what = table[name]
        plain = isinstance(field.default, bool | int | float | str) and name != "model"
        assert default.strip("`").lower() == (str(field.default).lower() if plain else ""), name
        _, said, otherwise = field.description.partition("default: ")
        assert f"{said}{otherwise}".replace("`", "") in what.replace("`", ""), name
