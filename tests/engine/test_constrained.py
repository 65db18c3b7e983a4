"""Constrained answers: every mode keeps to the grammar, drafts change nothing, forced tokens need no forward."""

import random
import re
from dataclasses import replace

import pytest

from service.constraints.constraint import Constraint
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Remask, Sequential, Speculative, Static
from service.engine import GenerationRequest, SamplingParams
from service.errors import ConstraintFailed
from tests.constraints.checkpoints import DEMO, checkpoint, prompt, text_of
from tests.constraints.checkpoints import NAMES as UNSHIFTED
from tests.constraints.schemas import HARD, random_schema
from tests.engine.constrained import constrained, engine_of, sampled, try_schemas
from tests.engine.helpers import events_of
from tests.thinned import fast_only
from tests.tiny import FAST_DLLM_NAME, GOLDEN_NAMES

GREEDY = SamplingParams()
#: answers that many draws try to fit; the slow test has more
FEW, MANY = 5, 2000
NAMES = (*UNSHIFTED, FAST_DLLM_NAME)
#: checkpoints of the fast tests: the trained one, and random weights whose tokens are pairs of bytes; shifted outputs
FAST = (DEMO, GOLDEN_NAMES[1], FAST_DLLM_NAME)
MODES: tuple[DecodingMode, ...] = (
    Static(),
    Static(4),
    Dynamic(0.3),
    Sequential(2),
    Direct(3),
    Speculative(),
    Remask(0.3),
)


def schemas(seed: int, count: int) -> list[object]:
    return [random_schema(random.Random(f"{seed}.{number}")) for number in range(count)]


@pytest.mark.parametrize("name", fast_only(FAST.__contains__, NAMES))
def test_every_answer_fits_its_schema_and_drafts_change_nothing(name: str) -> None:
    rng = random.Random(name)
    assert try_schemas(name, [*schemas(1, FEW), *rng.sample(HARD, FEW)], rng) >= 2 * FEW


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_thousand_random_schemas_and_the_hard_ones(name: str) -> None:
    rng, share = random.Random(f"slow {name}"), MANY // len(NAMES)
    assert try_schemas(name, [*schemas(NAMES.index(name) + 2, share), *HARD], rng) > share


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        (Constraint.regex("[0-9]{3}-[a-f]{2,4}x"), "[0-9]{3}-[a-f]{2,4}x"),
        (Constraint.choice(["yes", "no", "yes, of course"]), "yes|no|yes, of course"),
        (Constraint.grammar('start: "<" NAME ">"\nNAME: /[a-z]{1,5}/'), "<[a-z]{1,5}>"),
        (Constraint.grammar('root ::= "(" inner ")"\ninner ::= [0-9] | "[" [a-c] "]"'), r"\(([0-9]|\[[a-c]\])\)"),
    ],
)
def test_patterns_choices_and_grammars_hold_in_every_mode(constraint: Constraint, pattern: str) -> None:
    rng = random.Random(5)
    requests = [
        constrained(DEMO, f"{mode} {number}", constraint, mode, sampled(rng)) for mode in MODES for number in range(4)
    ]
    for completion in engine_of(DEMO).generate(requests):
        assert re.fullmatch(pattern, text_of(DEMO, completion.token_ids)), completion.request_id
        assert (completion.finish_reason, completion.constraint_met) == ("stop", True), completion.request_id


def test_a_batch_decodes_constrained_and_free_requests_as_each_alone() -> None:
    rng, eos = random.Random(3), frozenset(checkpoint(DEMO).config.eos_token_ids)
    requests: list[GenerationRequest] = []
    for number, schema in enumerate(schemas(9, 5)):
        mode, sampling = rng.choice(MODES), sampled(rng)
        requests.append(constrained(DEMO, f"c{number}", Constraint.json(schema, "x"), mode, sampling, 24))
        requests.append(GenerationRequest(f"f{number}", prompt(DEMO), rng.choice(MODES), sampling, 16, eos))
    together = engine_of(DEMO).generate(requests)
    for request, made in zip(requests, together, strict=True):
        [alone] = engine_of(DEMO).generate([request])
        assert (made.token_ids, made.finish_reason) == (alone.token_ids, alone.finish_reason)
        assert (made.constraint_met is None) == request.request_id.startswith("f")
        assert made.stats.forced_tokens == 0 or request.request_id.startswith("c")


class TestForcedTokens:
    def test_an_answer_without_a_choice_needs_no_forward(self) -> None:
        text = "All of this, however long, is the only text that the grammar has. " * 3
        request = constrained(DEMO, "a", Constraint.choice([text]), Speculative(), GREEDY, 300)
        [made] = engine_of(DEMO).generate([request])
        assert text_of(DEMO, made.token_ids) == text
        assert made.stats.forwards == type(made.stats.forwards)()
        assert made.stats.forced_tokens == made.stats.decoded_tokens == len(made.token_ids) + 1
        assert (made.finish_reason, made.constraint_met) == ("stop", True)
        assert {step.kind for event in made.blocks for step in event.steps} == {"forced"}

    def test_the_limit_cuts_it_and_says_so(self) -> None:
        request = constrained(DEMO, "a", Constraint.choice(["one two three four five"]), Speculative(), GREEDY, 3)
        [made] = engine_of(DEMO).generate([request])
        assert len(made.token_ids) == 3
        assert (made.finish_reason, made.constraint_met) == ("length", False)

    def test_a_forced_text_between_choices_is_written_at_once(self) -> None:
        constraint = Constraint.regex("[0-9] is the answer that was found, and [0-9] is another one[.]")
        [made] = engine_of(DEMO).generate([constrained(DEMO, "a", constraint, Sequential(), GREEDY)])
        assert made.stats.forwards.denoise == made.stats.decoded_tokens - made.stats.forced_tokens <= 4


class TestBeginnings:
    @pytest.mark.parametrize("name", fast_only(FAST.__contains__, NAMES))
    def test_a_continued_answer_is_the_same(self, name: str) -> None:
        """As after a lost replica: the blocks so far come back as the end of the prompt."""
        constraint, sampling = Constraint.regex("([a-c]{5}=[0-9]{5};){2}"), SamplingParams(temperature=1.0, seed=4)
        whole = constrained(name, "a", constraint, Sequential(), sampling)
        [made] = engine_of(name).generate([whole])
        sent: tuple[int, ...] = ()
        for event in made.blocks[:-1]:
            sent += event.token_ids
            rest = replace(
                whole,
                prompt_token_ids=whole.prompt_token_ids + sent,
                max_new_tokens=whole.max_new_tokens - len(sent),
                num_continued=len(sent),
            )
            [continued] = engine_of(name).generate([rest])
            assert sent + continued.token_ids == made.token_ids
            assert (continued.finish_reason, continued.constraint_met) == ("stop", True)

    def test_a_stop_token_of_the_client_ends_it_early(self) -> None:
        free = constrained(DEMO, "a", Constraint.regex("[a-z]{20}"), Sequential(), GREEDY)
        [made] = engine_of(DEMO).generate([free])
        digit = made.token_ids[2]
        [cut] = engine_of(DEMO).generate([replace(free, stop_token_ids=free.stop_token_ids | {digit})])
        assert cut.token_ids == made.token_ids[: made.token_ids.index(digit)]
        assert (cut.finish_reason, cut.constraint_met) == ("stop", False)


def test_a_grammar_that_comes_to_a_dead_end_ends_its_request_alone() -> None:
    """The grammar's rule `b` never ends: after the first letter nothing can follow."""
    dead = constrained(DEMO, "a", Constraint.grammar('start: ("x" | "y") b\nb: b "z"'), Sequential(), GREEDY)
    other = constrained(DEMO, "b", Constraint.choice(["yes", "no"]), Sequential(), GREEDY)
    ends = {name: events[-1] for name, events in events_of(engine_of(DEMO), [dead, other]).items()}
    assert isinstance(ends["a"].error, ConstraintFailed)
    assert (ends["b"].finish_reason, ends["b"].constraint_met) == ("stop", True)
