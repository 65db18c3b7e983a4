"""README says what the code has: every mode and its knobs. Its library example prints what stands below it."""

import re
from dataclasses import fields
from pathlib import Path

from service.decode.registry import MODES

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def lines(heading):
    """The rows of the first table below a heading, as they stand."""
    section = README.split(f"## {heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)[0]
    return table.splitlines()[2:]


def rows(heading):
    """The cells of these rows."""
    return [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in lines(heading)]


def test_the_librarys_example_prints_what_stands_below_it(capsys):
    section = README.split("## As a library\n", 1)[1]
    example, printed = re.findall(r"```(?:python|text)\n(.*?)```", section, re.DOTALL)[:2]
    exec(example, {})
    assert capsys.readouterr().out == printed


def test_every_mode_stands_in_the_table_with_its_knobs():
    found = {row[0]: row[1] for row in rows("Modes")}
    assert found == {f"`{name}`": ", ".join(f"`{f.name}`" for f in fields(params)) for name, params in MODES.items()}
