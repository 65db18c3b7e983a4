"""README's tables say what the code has: every metric, every mode and its knobs, every setting, row for row."""

import os
import re
from dataclasses import fields
from pathlib import Path

from service.decode.registry import MODES
from service.settings import Settings
from service.telemetry.metrics import METRICS

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def lines(heading):
    """The rows of the first table below a heading, as they stand."""
    section = README.split(f"## {heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)[0]
    return table.splitlines()[2:]


def rows(heading):
    """The cells of these rows."""
    return [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in lines(heading)]


def metric_line(metric):
    labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
    return f"| `{metric.name}{labels}` | {metric.kind} | {metric.help} |"


def test_the_librarys_example_prints_what_stands_below_it(capsys):
    section = README.split("## As a library\n", 1)[1]
    example, printed = re.findall(r"```(?:python|text)\n(.*?)```", section, re.DOTALL)[:2]
    exec(example, {})
    assert capsys.readouterr().out == printed


def test_every_metric_stands_in_the_table():
    assert [line.replace("`", "") for line in lines("Metrics")] == [
        metric_line(metric).replace("`", "") for metric in METRICS
    ]


def test_every_mode_stands_in_the_table_with_its_knobs():
    found = {row[0]: row[1] for row in rows("Modes")}
    assert found == {f"`{name}`": ", ".join(f"`{f.name}`" for f in fields(params)) for name, params in MODES.items()}


def setting_line(name, field):
    """A setting's row: its name, its default as it is written in a file, what it is."""
    default = f"`{field.default}`"
    if field.default in (None, ()):
        default = ""
    elif isinstance(field.default, bool):
        default = default.lower()
    elif os.sep in default:  # a path on this machine
        default = "the shipped demo"
    return f"| `{name}` | {default} | {field.description} |"


def test_every_setting_stands_in_the_table():
    assert lines("Settings") == [setting_line(name, field) for name, field in Settings.model_fields.items()]
