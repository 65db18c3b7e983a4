"""Compiling is done once for equal constraints, on other threads, and never for ever."""

from __future__ import annotations

import asyncio
import threading

import pytest

from service.constraints import compiler as module
from service.constraints.compiler import Compiler
from service.constraints.constraint import Constraint
from service.constraints.vocabulary import Vocabulary
from service.errors import ConstraintNotAvailable, InvalidRequest
from tests.constraints.checkpoints import DEMO, vocabulary

DIGITS = Constraint.regex("[0-9]+")


async def test_equal_constraints_are_compiled_once() -> None:
    made: list[int] = []

    def make() -> Vocabulary:
        made.append(threading.get_ident())
        return vocabulary(DEMO)

    compiler = Compiler(make)
    one, other = await asyncio.gather(compiler.compile(DIGITS), compiler.compile(Constraint.regex("[0-9]+")))
    assert one is other
    assert await compiler.compile(Constraint.regex("[a-z]")) is not one
    assert len(made) == 1
    assert made[0] != threading.get_ident()
    compiler.close()


async def test_errors_are_kept_too_and_raised_anew() -> None:
    compiler = Compiler(lambda: vocabulary(DEMO))
    errors = []
    for _ in range(2):
        with pytest.raises(InvalidRequest) as caught:
            await compiler.compile(Constraint.regex("("))
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert errors[0].message == errors[1].message
    compiler.close()


async def test_only_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT", 2)
    compiler = Compiler(lambda: vocabulary(DEMO))
    first = await compiler.compile(DIGITS)
    for pattern in ("a", "b"):
        await compiler.compile(Constraint.regex(pattern))
    assert await compiler.compile(DIGITS) is not first
    compiler.close()


async def test_who_waits_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SECONDS", 0.01)
    go = threading.Event()

    def make() -> Vocabulary:
        assert go.wait(60)
        return vocabulary(DEMO)

    compiler = Compiler(make)
    with pytest.raises(InvalidRequest, match=r"regex takes more than 0.01 s to compile"):
        await compiler.compile(DIGITS)
    go.set()
    compiler.close()


async def test_a_checkpoint_without_bytes_says_so_every_time() -> None:
    def make() -> Vocabulary:
        raise ConstraintNotAvailable("no bytes")

    compiler = Compiler(make)
    for constraint in (DIGITS, DIGITS, Constraint.regex("a")):
        with pytest.raises(ConstraintNotAvailable):
            await compiler.compile(constraint)
    compiler.close()
