"""The allowed imports between packages (ARCHITECTURE.md), checked on the syntax trees."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache

import pytest

from tests.sources import ROOT, parsed

#: part of the code: modules of ours it may import besides itself (a package allows what is in it).
#: The first part that a module is within counts.
TABLE = """
service.errors:
service.tracebacks: service.errors
service.settings.defaults:
service.fair_queue:
service.ipc: service.errors
service.settings: service.decode.modes service.errors
service.text: service.ipc service.errors
service.demo:
service.decode: service.errors
service.model: service.errors
service.constraints: service.ipc service.errors
service.quality.calibration: service.decode service.demo service.engine service.model service.quality service.text
    service.errors
service.quality: service.decode service.model.config service.errors
service.engine.forward: service.decode service.engine.memory_plan service.engine.request service.model service.errors
service.engine: service.decode service.fair_queue service.ipc service.model service.settings.defaults service.errors
    service.tracebacks
service.parallel: service.decode.block service.engine.forward service.ipc service.model service.settings.defaults
    service.errors service.tracebacks
service.messages: service.constraints.constraint service.decode.block service.decode.knobs service.decode.mode
    service.decode.modes service.decode.step_map service.engine.request service.ipc service.quality.presets
    service.text.token_text service.text.tools service.errors
service.telemetry: service.messages service.settings service.errors
service.routing: service.messages service.errors
service.link: service.ipc service.messages service.routing service.errors service.tracebacks
service.admission: service.fair_queue service.messages service.settings service.errors
service.engine_process: service.constraints service.decode.block service.engine service.ipc service.messages
    service.model service.parallel service.settings service.telemetry service.text service.errors service.tracebacks
service.replica: service.decode.block service.decode.mode service.decode.modes service.decode.registry
    service.decode.step_map
    service.engine service.engine_process service.messages service.model service.quality service.settings
    service.telemetry service.text service.errors service.tracebacks
service.api: service.admission.charge service.constraints.constraint service.constraints.structural_tags
    service.decode.knobs service.decode.mode service.decode.modes service.decode.registry service.engine.request
    service.fair_queue service.ipc service.messages service.quality service.settings.defaults
    service.constraints.json_text service.text.token_text service.text.tools service.errors service.tracebacks
service.gateway.playground:
service.gateway: service.admission service.api service.ipc service.messages service.routing
    service.settings service.telemetry service.errors service.tracebacks
service.rayserve: service.gateway service.ipc service.link service.messages service.replica service.routing
    service.settings service.telemetry service.errors
service.batch: service.api service.ipc service.messages service.replica service.routing service.settings
    service.constraints.json_text service.errors service.tracebacks
service.hooks: service.gateway.http.middleware service.rayserve.network service.rayserve.scaling
service.app: service.rayserve service.settings training.deployment
service.library: service.api service.constraints service.decode service.demo service.engine service.model
    service.quality service.settings.defaults service.text service.errors
mrp_serve: service
service.cli: service training.cli
training: service.cli.options service.cli.output service.cli.ray_start service.demo service.messages service.model
    service.rayserve service.settings service.telemetry service.text service.errors
"""
ALLOWED: dict[str, tuple[str, ...]] = {
    part: tuple(modules.split())
    for part, _, modules in (line.partition(":") for line in re.sub(r"\n +", " ", TABLE.strip()).split("\n"))
}

#: library -> the parts of the code where it may be imported
CONFINED: dict[str, tuple[str, ...]] = {
    "ray": ("service.rayserve", "service.app", "service.cli", "training"),
    "fastapi": ("service.api", "service.gateway"),
    "starlette": ("service.api", "service.gateway.playground", "service.gateway", "service.rayserve"),
    "opentelemetry": ("service.telemetry", "service.replica", "service.gateway"),
    "structlog": ("service.telemetry",),
    "tokenizers": ("service.text", "training"),
    "transformers": ("service.text",),
    "typer": ("service.cli", "training"),
    "llguidance": ("service.constraints",),
    "torch": (
        "service.model",
        "service.engine.forward",
        "service.parallel",
        "service.app",
        "service.quality.calibration",
        "service.cli",
        "training",
    ),
    "triton": ("service.model", "service.engine.forward"),
    "service": tuple(ALLOWED),
    "training": ("training", "service.app", "service.cli"),
    **dict.fromkeys(("benchmarks", "dev", "loadtest", "tests"), ()),  # not installed
}


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module an import statement names; `from a import b` counts as `a.b`, for b may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(module: str) -> str | None:
    """The part of the code that a module belongs to."""
    return next((part for part in ALLOWED if within(module, part)), None)


def violations(module: str, names: Iterable[str]) -> list[str]:
    """The imports of `module` against the rule."""
    part = part_of(module)
    if part is None:
        return [f"{module}: has no line in ALLOWED"] if module != "service" else []
    errors = []
    for name in names:
        parts = CONFINED.get(name.split(".")[0])
        ours = within(name, "service") and not any(within(name, other) for other in (part, *ALLOWED[part]))
        if ours or (parts is not None and part not in parts):
            errors.append(f"{module} must not import {name}")
    return errors


@cache
def imports() -> dict[str, list[str]]:
    """Every module that is shipped or trains -> the modules that it imports."""
    trees = parsed("mrp_serve") | parsed("service") | parsed("training")
    return {
        path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): list(imported(tree))
        for path, tree in trees.items()
    }


def test_every_module_keeps_the_rule() -> None:
    errors = [line for module, names in imports().items() for line in violations(module, names)]
    assert not errors, "\n".join(errors)


def test_nothing_is_allowed_that_nobody_needs() -> None:
    """An allowance that no module uses would let a new import in unnoticed."""
    used = {(part_of(module), name) for module, names in imports().items() for name in names}
    parts = [(part, other) for part, allowed in ALLOWED.items() for other in allowed]
    libraries = [(part, library) for library, users in CONFINED.items() if library != "service" for part in users]
    idle = [
        pair
        for pair in (*parts, *libraries)
        if not any(part == pair[0] and within(name, pair[1]) for part, name in used)
    ]
    assert not idle


def test_all_code_is_looked_at() -> None:
    assert {"service", "service.errors", "service.decode.registry", "service.engine.thread"} <= set(imports())


@pytest.mark.parametrize(
    ("module", "source", "culprit"),
    [
        ("service.errors", "import service.engine", "service.engine"),
        ("service.decode.static", "import torch.nn as nn", "torch.nn"),
        ("service.decode.static", "def f():\n    from torch import Tensor", "torch.Tensor"),
        ("service.decode.static", "from service.model import Mrp", "service.model.Mrp"),
        ("service.model.layers", "from service import decode", "service.decode"),
        ("service.engine.engine", "from service.api import protocol", "service.api.protocol"),
        ("service.engine.thread", "from opentelemetry import trace", "opentelemetry.trace"),
        ("service.replica.blocks", "from service.decode.policy import Prediction", "service.decode.policy.Prediction"),
        ("training.module", "from fastapi import FastAPI", "fastapi.FastAPI"),
        ("service.engine.engine", "import training.module", "training.module"),
        ("service.text.codec", "import training.conversations", "training.conversations"),
        ("service.text.codec", "from service.messages import wire", "service.messages.wire"),
        ("service.cli.check", "from benchmarks import shapes", "benchmarks.shapes"),
        ("service.replica.replica", "from tokenizers import Tokenizer", "tokenizers.Tokenizer"),
    ],
)
def test_a_violation_is_named_with_file_and_import(module: str, source: str, culprit: str) -> None:
    assert violations(module, imported(ast.parse(source))) == [f"{module} must not import {culprit}"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("service.decode.static", "from service.decode.block import Canvas\nfrom service.errors import MrpServeError"),
        ("service.engine.forward.runner", "import torch\nfrom service.model import Checkpoint"),
        ("service.gateway.ingress", "import numpy\nimport fastapi\nfrom service.settings.settings import Settings"),
        ("service.errors", "import rayon"),
        ("training.module", "import torch\nfrom service.model import Mrp"),
    ],
)
def test_allowed_imports_pass(module: str, source: str) -> None:
    assert violations(module, imported(ast.parse(source))) == []


def test_a_new_package_must_be_given_a_place() -> None:
    assert violations("service.extra.thing", []) == ["service.extra.thing: has no line in ALLOWED"]


#: module -> why it may pickle, which runs code of the sender's choice
PICKLING = {"service.constraints.trials": "the vocabulary, to a process that it has started, over a pair of sockets"}
#: what can make code or any class of bytes
PICKLERS = (
    *("pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "copyreg", "ray.cloudpickle"),
    *("multiprocessing", "torch.load", "torch.save", "numpy.load"),
)


def test_nothing_pickles() -> None:
    users = {
        module
        for module, names in imports().items()
        if within(module, "service") and any(within(name, pickler) for name in names for pickler in PICKLERS)
    }
    assert users == set(PICKLING)


def named(module: str) -> str:
    """What ARCHITECTURE.md calls a part of the code that is imported: its package."""
    if module == "training.deployment":
        return "training"
    return module.split(".")[1] if module.startswith("service.") else "everything"


def test_the_table_of_packages_says_the_same() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8").split("## Packages", 1)[1].split("\n## ", 1)[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    written = {name.strip("`"): set(filter(None, imports.split(", "))) for name, _, imports in rows}
    assert written == {part.removeprefix("service."): set(map(named, parts)) for part, parts in ALLOWED.items()}


#: folder that is not installed -> what of ours it may import besides itself
SIDE_FOLDERS = {
    "benchmarks": ("service", "training", "loadtest"),
    "loadtest": ("service",),
    "dev": ("benchmarks", "service"),
}


def side_imports(folder: str) -> Iterator[tuple[str, str]]:
    """The files of a folder with the modules of ours that they import."""
    ours = ("service", "training", "tests", *SIDE_FOLDERS)
    for path, tree in parsed(folder).items():
        yield from ((path, name) for name in imported(tree) if name.split(".")[0] in ours)


@pytest.mark.parametrize("folder", SIDE_FOLDERS)
def test_side_folders_import_in_one_direction(folder: str) -> None:
    allowed = (folder, *SIDE_FOLDERS[folder])
    assert [pair for pair in side_imports(folder) if not any(within(pair[1], part) for part in allowed)] == []


def test_one_module_of_benchmarks_imports_the_program() -> None:
    users = {path for path, name in side_imports("benchmarks") if within(name, "service.cli")}
    assert users == {"benchmarks/options.py"}
