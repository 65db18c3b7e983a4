"""Who may import whom: the rule of ARCHITECTURE.md, read off the syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: part of the code -> modules of ours it may import besides itself (a package allows what is in it)
ALLOWED: dict[str, tuple[str, ...]] = {
    "service.errors": (),
    "service.settings": ("service.errors",),
    "service.tracebacks": (),
    "service.decode": ("service.errors",),
    "service.model": ("service.errors",),
    "service.quality": ("service.decode", "service.errors"),
    "service.engine": ("service.decode", "service.model", "service.errors", "service.tracebacks"),
    "service.text": ("service.errors",),
    "service.api": (
        "service.engine",
        "service.text",
        "service.decode.block",
        "service.decode.params",
        "service.decode.registry",
        "service.model",
        "service.quality",
        "service.settings",
        "service.errors",
        "service.tracebacks",
    ),
    "service.library": ("service.engine", "service.decode", "service.model", "service.text"),
    "service.app": ("service.api", "service.engine", "service.model", "service.settings", "service.errors"),
    "service.bench": (
        "service.engine",
        "service.decode",
        "service.model",
        "service.demo",
        "service.quality",
        "service.errors",
    ),
    "service.demo": ("service.errors",),
    "service.cli": ("service",),
    "training": ("service.decode", "service.demo", "service.engine", "service.errors", "service.model"),
}

#: library -> the parts of the code where it may be imported
CONFINED: dict[str, tuple[str, ...]] = {
    "ray": ("service.api", "service.app", "service.cli"),
    "fastapi": ("service.api", "service.app", "service.cli"),
    "starlette": ("service.api", "service.app", "service.cli"),
    "uvicorn": ("service.api", "service.app", "service.cli"),
    "opentelemetry": ("service.api",),
    "structlog": ("service.api",),
    "tokenizers": ("service.text", "training"),
    "transformers": ("service.text", "service.bench"),
    "typer": ("service.api", "service.app", "service.cli"),
    "torch": (
        "service.model",
        "service.engine",
        "service.api",
        "service.app",
        "service.bench",
        "service.cli",
        "training",
    ),
    "service": tuple(ALLOWED),
    "training": ("training", "service.cli"),
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


def violations(module: str, source: str) -> list[str]:
    """What `source`, the text of `module`, imports against the rule."""
    part = next((part for part in ALLOWED if within(module, part)), None)
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


def test_all_code_is_looked_at() -> None:
    assert {"service", "service.errors", "service.decode.registry", "service.engine.worker"} <= set(modules())


@pytest.mark.parametrize(
    ("module", "source", "culprit"),
    [
        ("service.errors", "import service.engine", "service.engine"),
        ("service.decode.static", "import torch.nn as nn", "torch.nn"),
        ("service.decode.static", "def f():\n    from torch import Tensor", "torch.Tensor"),
        ("service.decode.static", "from service.model import Sdar", "service.model.Sdar"),
        ("service.model.sdar", "from service import decode", "service.decode"),
        ("service.engine.engine", "from service.api import schemas", "service.api.schemas"),
        ("service.engine.worker", "import ray", "ray"),
        ("service.engine.worker", "from opentelemetry import trace", "opentelemetry.trace"),
        ("service.model.weights", "from fastapi.responses import Response", "fastapi.responses.Response"),
        ("service.api.blocks", "from service.decode.policy import Reading", "service.decode.policy.Reading"),
        ("service.settings", "import typer", "typer"),
        ("training.mrp", "from ray import serve", "ray.serve"),
        ("service.engine.engine", "import training.mrp", "training.mrp"),
        ("service.text.codec", "import training.conversations", "training.conversations"),
        ("service.text.codec", "from service.api import wire", "service.api.wire"),
        ("service.text.codec", "import torch", "torch"),
        ("service.api.generator", "from tokenizers import Tokenizer", "tokenizers.Tokenizer"),
    ],
)
def test_a_violation_is_named_with_file_and_import(module: str, source: str, culprit: str) -> None:
    assert violations(module, source) == [f"{module} must not import {culprit}"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("service.decode.static", "from service.decode.block import Canvas\nfrom service.errors import MrpServeError"),
        ("service.engine.engine", "import torch\nfrom service.model import Checkpoint"),
        ("service.api.ingress", "import ray\nfrom fastapi import FastAPI\nfrom service.settings import Settings"),
        ("service.errors", "import rayon"),
        ("training.mrp", "import torch\nfrom service.model import Mrp"),
    ],
)
def test_what_the_rule_allows_passes(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_a_new_package_must_be_given_a_place() -> None:
    assert violations("service.extra.thing", "") == ["service.extra.thing: has no line in ALLOWED"]
