"""An answer's way through a grammar: looking ahead changes nothing, masks and allowed tokens agree."""

import random
import time
from itertools import count

import numpy as np
import pytest

from service.constraints.constraint import Constraint
from service.constraints.grammars import compile_grammar
from service.constraints.matcher import PER_TOKEN, RESERVE, GuidanceMatcher, TenantReserve
from service.errors import ConstraintFailed
from tests.constraints.checkpoints import DEMO, NAMES, compiled, text_of, tokenizer, vocabulary
from tests.constraints.schemas import random_schema

NUMBERS = Constraint.regex("[0-9]{3}( and [0-9])?")


def ids(text: str, name: str = DEMO) -> tuple[int, ...]:
    return tuple(tokenizer(name).encode(text).ids)


def allowed(grammar: GuidanceMatcher, tokens: tuple[int, ...]) -> set[int]:
    mask = grammar.mask(tokens)
    return set() if mask is None else set(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist())


@pytest.fixture
def numbers() -> GuidanceMatcher:
    return compiled(DEMO, NUMBERS).open()


def test_looking_ahead_and_back_changes_nothing(numbers: GuidanceMatcher) -> None:
    before = allowed(numbers, ())
    first, second = ids("12"), ids("345")
    seen = [allowed(numbers, first), allowed(numbers, second), allowed(numbers, ())]
    assert seen == [allowed(numbers, first), allowed(numbers, second), before]


def test_the_end_is_allowed_where_the_answer_may_end(numbers: GuidanceMatcher) -> None:
    [end] = vocabulary(DEMO).eos
    assert end not in allowed(numbers, ids("34"))
    assert end in allowed(numbers, ids("345"))
    assert numbers.complete(ids("345"))
    assert not numbers.complete(ids("34"))
    assert numbers.allowed(ids("34"), (*ids("5"), end, *ids("6"))) == 2
    assert numbers.allowed(ids("34"), (end,)) == 0
    assert numbers.mask((*ids("345"), end)) is None
    assert numbers.forced((*ids("345"), end)) == ()
    assert numbers.allowed((*ids("345"), end), ids("6")) == 0


def test_the_end_is_forced_where_nothing_else_can_come(numbers: GuidanceMatcher) -> None:
    whole = "345 and 6"
    assert numbers.forced(ids(whole)) == vocabulary(DEMO).eos
    assert text_of(DEMO, numbers.forced((*ids("345"), *ids(" a")))) == "nd"


def test_tokens_that_are_no_text_are_never_allowed(numbers: GuidanceMatcher) -> None:
    control = {token for token in range(1024) if vocabulary(DEMO).tokens.is_special_token(token)}
    for tokens in ((), ids("345"), ids("345 and 6")):
        assert not allowed(numbers, tokens) & (control - set(vocabulary(DEMO).eos))
    for token in (4, 0, 1023):
        assert numbers.allowed((), (token,)) == int(token in allowed(numbers, ()))


def test_final_tokens_are_where_it_counts_from(numbers: GuidanceMatcher) -> None:
    ahead = allowed(numbers, ids("34"))
    numbers.advance(ids("34"))
    assert allowed(numbers, ()) == ahead
    assert numbers.complete(ids("5"))


def test_tokens_that_the_grammar_refuses_are_an_error(numbers: GuidanceMatcher) -> None:
    with pytest.raises(ConstraintFailed) as caught:
        numbers.mask(ids("x"))
    assert caught.value.param == "regex"
    assert not numbers.complete(ids("3"))  # a matcher that failed stays so, quietly


#: every further mask takes longer than the one before it
AMBIGUOUS = Constraint.grammar(
    "start: e\ne: "
    + " | ".join(f"e x{n} e" for n in range(60))
    + ' | "a"\n'
    + "\n".join(f'x{n}: "a"?' for n in range(60))
)


def test_answers_that_take_too_long_are_ended() -> None:
    """All answers of a tenant together have one budget, and another tenant its own. `used`: by all, in CPU seconds."""
    now = 0.0
    grammar, reserve = compiled(DEMO, NUMBERS), TenantReserve(lambda: now)
    first, second = grammar.within(reserve).open(), grammar.within(reserve).open()
    free = grammar.within(TenantReserve(lambda: now)).open()
    first.mask(())
    first.spend(RESERVE + 1.0, 0)
    for opened in (first, second):
        with pytest.raises(ConstraintFailed, match="takes too long, allowed are 3 ms a token and 50 ms a second"):
            opened.mask(())
    assert not second.complete(())  # what its end needs is not refused
    assert free.mask(()) is not None
    now = 3600.0
    assert second.mask(()) is not None


def test_an_ambiguous_grammar_ends_before_it_holds_others_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 answers share one budget. By this clock each call takes 50 ms, so a few calls use it up."""
    ticks = count()
    monkeypatch.setattr(time, "thread_time", lambda: next(ticks) * 0.05)
    grammar = compile_grammar(AMBIGUOUS, vocabulary(DEMO)).within(TenantReserve(lambda: 0.0))
    answers, calls, failed = [grammar.open() for _ in range(64)], 0, 0
    for length in range(1, 40):
        for answer in answers:
            try:
                answer.mask(ids("a" * length))
                calls += 1
            except ConstraintFailed:
                failed += 1
    assert failed == 64 * 39 - calls
    assert 0 < calls <= (RESERVE + 64 * PER_TOKEN) / 0.05


def test_a_failure_of_the_library_ends_the_answer_only(
    numbers: GuidanceMatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its panics are no `Exception`, and would end the engine's thread."""
    panic = type("PanicException", (BaseException,), {})

    class Panics:
        def compute_bitmask(self) -> bytes:
            raise panic("the prompt")

    monkeypatch.setattr(numbers, "_matcher", Panics())
    with pytest.raises(ConstraintFailed, match="the library has failed"):
        numbers.mask(())


@pytest.mark.parametrize("name", NAMES)
def test_forced_tokens_are_allowed_ones_and_mask_agrees_with_allowed(name: str) -> None:
    """On random ways through random schemas."""
    for seed in range(15):
        rng = random.Random(f"{name}.{seed}")
        grammar = compiled(name, Constraint.json(random_schema(rng), "x")).open()
        tokens: tuple[int, ...] = ()
        while len(tokens) < 60 and (may := allowed(grammar, tokens)):
            forced = grammar.forced(tokens)
            assert grammar.allowed(tokens, forced) == len(forced)
            some = rng.sample(sorted(may), min(5, len(may)))
            assert all(grammar.allowed(tokens, (token,)) == 1 for token in some)
            refused = [token for token in rng.sample(range(1024 if name == DEMO else 512), 20) if token not in may]
            assert not any(grammar.allowed(tokens, (token,)) for token in refused)
            tokens += forced or (rng.choice(some),)
