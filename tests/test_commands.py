"""Commands that documents name exist: the program's and the benchmarks, with their options; modules; make's targets."""

import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from benchmarks.gpu import __main__ as gpu
from service.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "service/demo/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "dev" / "lab").glob("*.md")),
]
COMMANDS = typer.main.get_group(app).commands
#: of `benchmarks.gpu`, which has argparse: no typer on the machine of a lent GPU
GPU_OPTIONS = gpu._parser().format_help().split()
#: what the lab measured with and what only an earlier commit has; its pages may name it
LAB = ROOT / "dev" / "lab"
OF_THE_TAG = (
    "ramp",
    "determinism",
    *(f"loadtest.{name}" for name in ("capacity", "comparison", "fleet", "routing", "settings")),
)
OF_THE_TAG += ("dev.lab.rules", "dev.lab.auto_tables", "serve --torch-threads", "host --seconds", "calibrate --threads")


def commands(page: Path) -> Iterator[str]:
    """Every piece of code of a page, in a block or in a line; a command that goes on over lines is one."""
    text = page.read_text("utf-8")
    for block in re.findall(r"^```(?:ba)?sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield from re.sub(r"\\\n\s*", " ", block).splitlines()
    yield from re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def command_named(program: str, name: str) -> Any:
    """A command of the program or a benchmark. None: there is none."""
    if program == "mrp-serve ":
        return COMMANDS.get(name)
    spec = importlib.util.find_spec(f"benchmarks.{name}")
    if spec is None:
        return None
    benchmark, package = typer.Typer(), ".__main__" if spec.submodule_search_locations else ""
    benchmark.command()(importlib.import_module(f"benchmarks.{name}{package}").command)
    return typer.main.get_command(benchmark)


def wrong_options(line: str) -> list[str]:
    """Commands of the program and benchmarks, and options of theirs, that a line names and that do not exist."""
    wrong = []
    for program, name, rest in re.findall(r"\b(mrp-serve |python -m benchmarks\.)([a-z][a-z-]*)([^|;&#]*)", line):
        if name == "gpu":  # argparse
            wrong += [
                f"gpu {option}" for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", rest) if option not in GPU_OPTIONS
            ]
            continue
        command = command_named(program, name)
        existing = {option for parameter in command.params for option in parameter.opts} if command else set()
        used = re.findall(r"(?<![\w'\"-])--[a-z][a-z-]*", re.sub(r"\"[^\"]*\"|'[^']*'", "", rest))
        wrong += [f"{name} {option}" for option in used if option not in existing] if command else [name]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_program_has_every_command_and_option(page: Path) -> None:
    wrong = [name for line in commands(page) for name in wrong_options(line)]
    assert [name for name in wrong if not (page.is_relative_to(LAB) and name in OF_THE_TAG)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_and_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    lines = list(commands(page))
    folders = "service|training|loadtest|benchmarks|dev"
    modules = {name.rstrip(".") for line in lines for name in re.findall(rf"python -m ((?:{folders})[\w.]*)", line)}
    if page.is_relative_to(LAB):
        modules = {name for name in modules if not name.startswith(OF_THE_TAG)}
    assert [name for name in modules if not exists(name)] == []
    named = {target for line in lines for target in re.findall(r"^make ([a-z-]+)", line)}
    assert named <= targets


def exists(module: str) -> bool:
    """Whether a module is there; a name such as `benchmarks.NAME` stands for any."""
    return module.endswith(".NAME") or importlib.util.find_spec(module) is not None
