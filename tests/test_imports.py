"""The allowed imports between packages (ARCHITECTURE.md), checked on the syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: part of the code -> modules of ours it may import besides itself (a package allows what is in it).
#: The first part that a module is within counts.
ALLOWED: dict[str, tuple[str, ...]] = {
    "service.errors": (),
    "service.tracebacks": ("service.errors",),
    "service.defaults": (),
    "service.fair_queue": ("service.defaults",),
    "service.ipc": (),
    "service.data": (),
    "service.messagepack": ("service.ipc", "service.data", "service.errors"),
    "service.suggestions": (),
    "service.json_text": (),
    "service.settings_sources": ("service.suggestions", "service.errors"),
    "service.settings": ("service.defaults", "service.decode.modes", "service.settings_sources", "service.errors"),
    "service.text": ("service.data", "service.errors"),
    "service.demo": (),
    "service.decode": ("service.errors",),
    "service.model": ("service.errors",),
    "service.constraints": ("service.data", "service.json_text", "service.errors"),
    "service.quality": ("service.decode", "service.model.config", "service.errors"),
    "service.engine.forward": (
        "service.decode",
        "service.engine.memory_plan",
        "service.engine.request",
        "service.model",
        "service.errors",
    ),
    "service.engine": (
        "service.defaults",
        "service.decode",
        "service.model",
        "service.fair_queue",
        "service.data",
        "service.errors",
        "service.tracebacks",
    ),
    "service.parallel": (
        "service.defaults",
        "service.engine.forward",
        "service.decode.block",
        "service.model",
        "service.data",
        "service.ipc",
        "service.messagepack",
        "service.errors",
        "service.tracebacks",
    ),
    "service.wire": (
        "service.constraints.constraint",
        "service.data",
        "service.decode.block",
        "service.decode.step_map",
        "service.decode.modes",
        "service.decode.mode",
        "service.engine.request",
        "service.fair_queue",
        "service.text.token_text",
        "service.errors",
    ),
    "service.replica_status": (
        "service.data",
        "service.decode.knobs",
        "service.quality.presets",
        "service.text.tools",
        "service.wire",
        "service.errors",
    ),
    "service.telemetry": ("service.replica_status", "service.settings", "service.errors"),
    "service.routing": ("service.wire",),
    "service.link": (
        "service.data",
        "service.ipc",
        "service.messagepack",
        "service.routing",
        "service.wire",
        "service.replica_status",
        "service.errors",
        "service.tracebacks",
    ),
    "service.admission": (
        "service.wire",
        "service.replica_status",
        "service.fair_queue",
        "service.settings",
        "service.settings_sources",
        "service.suggestions",
        "service.errors",
    ),
    "service.replica": (
        "service.data",
        "service.ipc",
        "service.messagepack",
        "service.wire",
        "service.replica_status",
        "service.telemetry",
        "service.text",
        "service.constraints",
        "service.engine",
        "service.parallel",
        "service.decode.block",
        "service.decode.step_map",
        "service.decode.modes",
        "service.decode.registry",
        "service.model",
        "service.quality",
        "service.settings",
        "service.errors",
        "service.tracebacks",
    ),
    "service.gateway.http": (
        "service.json_text",
        "service.defaults",
        "service.admission.charge",
        "service.wire",
        "service.replica_status",
        "service.text.tools",
        "service.data",
        "service.tracebacks",
        "service.fair_queue",
        "service.constraints.constraint",
        "service.constraints.structural_tags",
        "service.engine.request",
        "service.decode.knobs",
        "service.decode.modes",
        "service.decode.registry",
        "service.quality",
        "service.suggestions",
        "service.errors",
    ),
    "service.gateway.openai": (
        "service.gateway.http",
        "service.gateway.errors",
        "service.wire",
        "service.text.token_text",
        "service.text.tools",
        "service.errors",
    ),
    "service.gateway.anthropic": (
        "service.json_text",
        "service.gateway.http",
        "service.gateway.errors",
        "service.text.tools",
        "service.wire",
        "service.replica_status",
        "service.errors",
    ),
    "service.gateway.score": (
        "service.gateway.http",
        "service.gateway.openai",
        "service.gateway.errors",
        "service.wire",
        "service.fair_queue",
        "service.text.token_text",
        "service.decode.mode",
        "service.engine.request",
        "service.errors",
    ),
    "service.gateway.playground": (),
    "service.gateway": (
        "service.messagepack",
        "service.admission",
        "service.routing",
        "service.quality",
        "service.wire",
        "service.replica_status",
        "service.telemetry",
        "service.settings",
        "service.suggestions",
        "service.errors",
        "service.tracebacks",
    ),
    "service.rayserve": (
        "service.gateway",
        "service.replica",
        "service.link",
        "service.routing",
        "service.wire",
        "service.replica_status",
        "service.telemetry",
        "service.engine.gil_and_gc",
        "service.settings",
        "service.errors",
        "service.tracebacks",
    ),
    "service.batch": (
        "service.json_text",
        "service.gateway",
        "service.replica",
        "service.engine.gil_and_gc",
        "service.wire",
        "service.replica_status",
        "service.settings",
        "service.suggestions",
        "service.errors",
        "service.tracebacks",
    ),
    "service.hooks": ("service.gateway.proxied", "service.rayserve.scaling"),
    "service.app": ("service.rayserve", "service.settings"),
    "service.library": ("service.constraints", "service.text", "service.engine", "service.decode", "service.model"),
    "service.calibration": (
        "service.engine",
        "service.text",
        "service.decode",
        "service.model",
        "service.demo",
        "service.quality",
        "service.errors",
    ),
    "service.cli": ("service",),
    "training": ("service.demo", "service.model", "service.errors"),
}

#: library -> the parts of the code where it may be imported
CONFINED: dict[str, tuple[str, ...]] = {
    "ray": ("service.rayserve", "service.app", "service.cli"),
    "fastapi": (
        "service.gateway.http",
        "service.gateway.openai",
        "service.gateway.anthropic",
        "service.gateway.score",
        "service.gateway",
    ),
    "starlette": ("service.gateway.http", "service.gateway.playground", "service.gateway", "service.rayserve"),
    "opentelemetry": ("service.telemetry", "service.replica", "service.gateway"),
    "structlog": ("service.telemetry",),
    "tokenizers": ("service.text", "training"),
    "transformers": ("service.text",),
    "typer": ("service.cli",),
    "llguidance": ("service.constraints",),
    "torch": (
        "service.model",
        "service.engine.forward",
        "service.parallel",
        "service.app",
        "service.calibration",
        "service.cli",
        "training",
    ),
    "triton": ("service.model", "service.engine.forward"),
    "service": tuple(ALLOWED),
    "training": ("training", "service.cli"),
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


def violations(module: str, source: str) -> list[str]:
    """What `source`, the text of `module`, imports against the rule."""
    part = part_of(module)
    if part is None:
        return [f"{module}: has no line in ALLOWED"] if module != "service" else []
    found = []
    for name in imported(ast.parse(source)):
        places = CONFINED.get(name.split(".")[0])
        ours = within(name, "service") and not any(within(name, other) for other in (part, *ALLOWED[part]))
        if ours or (places is not None and part not in places):
            found.append(f"{module} must not import {name}")
    return found


def modules() -> dict[str, Path]:
    """Module name -> file, of everything that is shipped or trains."""
    files = [path for folder in ("service", "training") for path in sorted((ROOT / folder).rglob("*.py"))]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def test_every_module_keeps_the_rule() -> None:
    found = [line for module, path in modules().items() for line in violations(module, path.read_text("utf-8"))]
    assert not found, "\n".join(found)


def test_nothing_is_allowed_that_nobody_needs() -> None:
    """An allowance that no module uses would let a new import in unnoticed."""
    used = {
        (part_of(module), name)
        for module, path in modules().items()
        for name in imported(ast.parse(path.read_text("utf-8")))
    }
    parts = [(part, other) for part, others in ALLOWED.items() for other in others]
    libraries = [(part, library) for library, places in CONFINED.items() if library != "service" for part in places]
    idle = [
        pair
        for pair in (*parts, *libraries)
        if not any(part == pair[0] and within(name, pair[1]) for part, name in used)
    ]
    assert not idle


def test_all_code_is_looked_at() -> None:
    assert {"service", "service.errors", "service.decode.registry", "service.engine.thread"} <= set(modules())


@pytest.mark.parametrize(
    ("module", "source", "culprit"),
    [
        ("service.errors", "import service.engine", "service.engine"),
        ("service.decode.static", "import torch.nn as nn", "torch.nn"),
        ("service.decode.static", "def f():\n    from torch import Tensor", "torch.Tensor"),
        ("service.decode.static", "from service.model import Mrp", "service.model.Mrp"),
        ("service.model.layers", "from service import decode", "service.decode"),
        ("service.engine.engine", "from service.gateway.http import protocol", "service.gateway.http.protocol"),
        ("service.engine.thread", "import ray", "ray"),
        ("service.engine.thread", "from opentelemetry import trace", "opentelemetry.trace"),
        ("service.model.weights", "from fastapi.responses import Response", "fastapi.responses.Response"),
        ("service.replica.blocks", "from service.decode.policy import Prediction", "service.decode.policy.Prediction"),
        ("service.settings", "import typer", "typer"),
        ("training.module", "from ray import serve", "ray.serve"),
        ("service.engine.engine", "import training.module", "training.module"),
        ("service.text.codec", "import training.conversations", "training.conversations"),
        ("service.text.codec", "from service.wire import ReplicaRequest", "service.wire.ReplicaRequest"),
        ("service.text.codec", "import torch", "torch"),
        ("service.cli.check", "from benchmarks import shapes", "benchmarks.shapes"),
        ("service.replica.replica", "from tokenizers import Tokenizer", "tokenizers.Tokenizer"),
    ],
)
def test_a_violation_is_named_with_file_and_import(module: str, source: str, culprit: str) -> None:
    assert violations(module, source) == [f"{module} must not import {culprit}"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("service.decode.static", "from service.decode.block import Canvas\nfrom service.errors import MrpServeError"),
        ("service.engine.forward.runner", "import torch\nfrom service.model import Checkpoint"),
        ("service.gateway.ingress", "import numpy\nfrom fastapi import FastAPI\nfrom service.settings import Settings"),
        ("service.errors", "import rayon"),
        ("training.module", "import torch\nfrom service.model import Mrp"),
    ],
)
def test_what_the_rule_allows_passes(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_a_new_package_must_be_given_a_place() -> None:
    assert violations("service.extra.thing", "") == ["service.extra.thing: has no line in ALLOWED"]


def named(module: str) -> str:
    """What ARCHITECTURE.md calls a part of the code that is imported: its package."""
    return module.split(".")[1] if module.startswith("service.") else "everything"


def test_the_table_of_packages_says_the_same() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8").split("## Packages", 1)[1].split("\n## ", 1)[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    written = {name.strip("`"): set(filter(None, imports.split(", "))) for name, _, imports in rows}
    assert written == {part.removeprefix("service."): set(map(named, parts)) for part, parts in ALLOWED.items()}
