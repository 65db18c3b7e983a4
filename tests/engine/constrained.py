"""What tests of constrained answers share: modes, requests, and the check of a finished answer."""

import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import jsonschema

from service.constraints.constraint import Constraint
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Edit, Entropy, Remask, Sequential, Speculative, Static
from service.engine import Completion, Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from tests.constraints.checkpoints import checkpoint, compiled, prompt, text_of
from tests.engine.helpers import CHEAP_ROWS, FREE_ROWS

#: rules, and drafts that are verified against them
PAIRS: tuple[tuple[DecodingMode, tuple[DecodingMode, ...]], ...] = (
    (Sequential(), (Speculative(verify="sequential"), Speculative(3), Speculative(0, 4), Speculative(2, 4), Static())),
    (Static(3), (Speculative(2, tokens_per_step=3), Speculative(1, 4, tokens_per_step=3))),
    (
        Dynamic(0.4),
        (Speculative(threshold=0.4), Speculative(2, threshold=0.4), Speculative(0, 3, threshold=0.4), Edit(0.4)),
    ),
    (Entropy(0.5), (Speculative(verify="entropy", entropy_bound=0.5), Sequential(1, 0.5))),
)
OTHERS: tuple[DecodingMode, ...] = (Direct(2), Direct(4), Direct(2, 0.3), Remask(0.5), Remask(0.9))


def engine_of(name: str, costs: Any = CHEAP_ROWS) -> Engine:
    return Engine(checkpoint(name), EngineConfig(kv_cache_tokens=8192), deps=EngineDeps(costs=costs))


def constrained(
    name: str, key: str, constraint: Constraint, params: DecodingMode, sampling: SamplingParams, tokens: int = 160
) -> GenerationRequest:
    eos = frozenset(checkpoint(name).config.eos_token_ids)
    grammar = compiled(name, constraint)
    return GenerationRequest(key, prompt(name), params, sampling, tokens, eos, grammar=grammar)


def sampled(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0, 0, 0.7, 1.3]),
        top_k=rng.choice([0, 0, 3, 40]),
        top_p=rng.choice([1.0, 1.0, 0.8]),
        seed=rng.randrange(2**63),
    )


def check(name: str, schema: Any, completion: Completion) -> None:
    """An answer that ended by itself fits; one that was cut says so."""
    text = text_of(name, completion.token_ids)
    assert completion.finish_reason in ("stop", "length")
    if completion.finish_reason == "stop":
        assert completion.constraint_met is True
        jsonschema.validate(json.loads(text), schema)
    elif completion.constraint_met:
        jsonschema.validate(json.loads(text), schema)


def try_schemas(name: str, schemas: Iterable[Any], rng: random.Random) -> int:
    """Decodes an answer for every schema in a few modes together; checks that all fit and that pairs agree.

    Returns the number of answers that ended by themselves.
    """
    engine, param, stopped = engine_of(name, rng.choice([FREE_ROWS, CHEAP_ROWS])), "response_format", 0
    for schema in schemas:
        constraint, sampling = Constraint.json(schema, param), sampled(rng)
        rule, drafted = rng.choice(PAIRS)
        modes = [rule, rng.choice(drafted), rng.choice(OTHERS)]
        made = engine.generate(
            [constrained(name, str(key), constraint, mode, sampling) for key, mode in enumerate(modes)]
        )
        assert_equal(modes[:2], made[:2], schema)
        for completion in made:
            check(name, schema, completion)
            stopped += completion.finish_reason == "stop"
    return stopped


def assert_equal(modes: Sequence[DecodingMode], made: Sequence[Completion], schema: Any) -> None:
    """Drafts give the rule's tokens in no more forwards."""
    plain, drafted = made
    assert (plain.token_ids, plain.finish_reason) == (drafted.token_ids, drafted.finish_reason), (modes, schema)
    assert plain.stats.forced_tokens == drafted.stats.forced_tokens
    spent = [completion.stats.forwards.denoise + completion.stats.forwards.verify for completion in made]
    assert spent[1] <= spent[0], (modes, schema)
