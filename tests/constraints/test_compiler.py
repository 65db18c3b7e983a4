"""Compiling is done once for an owner's equal constraints, on other threads, and only of what a trial has passed."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from service.constraints import compiler as compiler_module
from service.constraints.compiler import GrammarCache, GrammarCompiler
from service.constraints.constraint import Constraint, Owner
from service.constraints.trials import Trial, Trials
from service.constraints.vocabulary import TokenVocabulary
from service.errors import ConstraintNotAvailable, InvalidRequest
from tests.constraints.checkpoints import DEMO, compiled, vocabulary

DIGITS = Constraint.regex("[0-9]+")
ANN, BOB = Owner("ann", "3:ann"), Owner("bob", "3:bob")


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[GrammarCompiler]:
    """One without trials, which have tests of their own."""
    monkeypatch.setattr(Trials, "run", lambda _, constraint: Trial(2**20, constraint))
    compiler = GrammarCompiler(lambda: vocabulary(DEMO))
    yield compiler
    compiler.close()


async def test_equal_constraints_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trials, "run", lambda _, constraint: Trial(2**20, constraint))
    made: list[int] = []

    def make() -> TokenVocabulary:
        made.append(threading.get_ident())
        return vocabulary(DEMO)

    compiler = GrammarCompiler(make)
    first, second = await asyncio.gather(compiler.compile(DIGITS), compiler.compile(Constraint.regex("[0-9]+")))
    assert first is second
    assert compiler.cached(DIGITS) is first
    assert await compiler.compile(Constraint.regex("[a-z]")) is not first
    assert len(made) == 1
    assert made[0] != threading.get_ident()
    compiler.close()


async def test_owners_share_a_grammar_only_with_the_same_salt(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one could tell by the time that it takes whether another one uses a constraint."""
    tried: list[Constraint] = []
    monkeypatch.setattr(Trials, "run", lambda _, constraint: tried.append(constraint) or Trial(0, constraint))
    await compiler.compile(DIGITS, ANN)
    assert compiler.cached(DIGITS, BOB) is None
    await compiler.compile(DIGITS, BOB)
    assert len(tried) == 2
    await compiler.compile(DIGITS, Owner("carl", BOB.salt))
    assert len(tried) == 2


async def test_errors_are_kept_too_and_raised_anew(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> int:
        tried.append(InvalidRequest("regex cannot be used", param="regex"))
        raise tried[-1]

    tried: list[InvalidRequest] = []
    monkeypatch.setattr(Trials, "run", run)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="regex cannot be used"):
            await compiler.compile(DIGITS, ANN)
    assert len(tried) == 1


async def test_one_tenant_never_has_all_threads(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def run(_: Trials, constraint: Constraint) -> Trial:
        assert constraint is DIGITS or go.wait(60)
        return Trial(0, constraint)

    monkeypatch.setattr(Trials, "run", run)
    bombs = [asyncio.ensure_future(compiler.compile(Constraint.regex(f"a{{{n}}}"), ANN)) for n in range(1, 5)]
    await asyncio.sleep(0)
    assert await compiler.compile(DIGITS, BOB)
    assert not any(bomb.done() for bomb in bombs)
    go.set()
    await asyncio.gather(*bombs)


def test_grammars_are_kept_by_their_memory_and_a_tenant_has_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "_MAX_TENANT", 2 * 2**20)
    monkeypatch.setattr(compiler_module, "_MAX_CACHE", 3 * 2**20)
    cache, grammar = GrammarCache(), compiled(DEMO, DIGITS)
    cache.add("of bob", "bob", grammar, 2**20)
    for key in ("first", "second", "third"):
        cache.add(key, "ann", grammar, 2**20)
    assert [key for key in ("of bob", "first", "second", "third") if cache.get(key)] == ["of bob", "second", "third"]
    cache.add("of carl", "carl", grammar, 2**20)
    assert [key for key in ("of bob", "second", "third", "of carl") if cache.get(key)] == ["second", "third", "of carl"]


def test_a_refusal_is_kept_for_a_minute() -> None:
    now = [0.0]
    cache = GrammarCache(lambda: now[0])
    cache.add("wrong", "ann", InvalidRequest("wrong"))
    assert cache.get("wrong")
    now[0] = 61.0
    assert cache.get("wrong") is None


async def test_a_checkpoint_without_bytes_says_so_every_time() -> None:
    def make() -> TokenVocabulary:
        raise ConstraintNotAvailable("no bytes")

    compiler = GrammarCompiler(make)
    for constraint in (DIGITS, DIGITS, Constraint.regex("a")):
        with pytest.raises(ConstraintNotAvailable):
            await compiler.compile(constraint)
    compiler.close()
