"""`speculative` equals `static`, token for token, on the demo checkpoint: alone and among companions.

The small count runs with every `make test`; the full one of the README is
`make test ARGS="-m slow -s tests/demo"`.
"""

import random
from dataclasses import replace

import pytest
from msgspec import structs

from service.decode.modes import Direct, Dynamic, Entropy, Remask, Sequential, Speculative, Static
from service.demo import CHECKPOINT, heldout_problems
from service.engine import Engine, EngineDeps, GenerationRequest, SamplingParams
from service.model import load_checkpoint
from service.text import TextCodec
from tests.engine.helpers import FREE_ROWS

TEMPERATURES = (0.0, 0.7, 1.2)
#: of the slow tests; a cold temperature rounds confidences to 0 and 1
MORE_TEMPERATURES = (0.0, 0.01, 0.05, 0.7, 1.2)
DRAFTED = (Speculative(1), Speculative(2), Speculative(4), Speculative(0, 8), Speculative(1, 4), Speculative(3, 8))
DRAFTED += (Speculative("auto"), Speculative("auto"), Speculative("auto", max_drafts=3))
DRAFTED += (Speculative(0, 6, prompt_lookup_num_tokens=8), Speculative(2, 6, prompt_lookup_num_tokens=8))
RULES = (Static(2), Dynamic(0.5), Sequential(), Sequential(1, 0.1), Entropy(0.1), Entropy(1.0))
#: what drafts for each of them
BY_RULE = (Speculative(4), Speculative(1, 8), Speculative())
COMPANIONS = (
    Sequential(1, 0.1), Entropy(0.5), Static(), Static(2), Dynamic(0.5), Direct(2), Speculative(4), Remask(0.5),
)  # fmt: skip


@pytest.fixture(scope="module")
def engine():
    return Engine(load_checkpoint(CHECKPOINT), deps=EngineDeps(costs=FREE_ROWS))


@pytest.fixture(scope="module")
def codec():
    return TextCodec.load(CHECKPOINT)


def requests(engine, codec, count, temperature):
    """Static requests on held-out problems, a seed each."""
    for number, problem in enumerate(heldout_problems(count, seed=7)):
        prompt = codec.encode_chat([{"role": "user", "content": problem.prompt}])
        sampling = SamplingParams(temperature, seed=1000 * number + int(10 * temperature))
        stop = frozenset(engine.model.eos_token_ids)
        yield GenerationRequest(f"{number}", tuple(prompt), Static(), sampling, 96, stop)


def differing(engine, codec, count, temperatures, most=32):
    """How many speculative completions were compared with static's, and which differed.

    At most `most` companions are in a batch.
    """
    rng, compared, different = random.Random(5), 0, []
    for temperature in temperatures:
        todo = list(requests(engine, codec, count, temperature))
        expected = [engine.generate([request])[0].token_ids for request in todo]
        drafted = [replace(request, mode=rng.choice(DRAFTED)) for request in todo]
        for number, request in enumerate(drafted):
            compared += 1
            if engine.generate([request])[0].token_ids != expected[number]:
                different.append(("alone", temperature, number))
        while drafted:
            size = rng.randint(1, 32)
            batch = drafted[:size]
            company = [
                replace(rng.choice(todo), request_id=f"companion-{index}", mode=rng.choice(COMPANIONS))
                for index in range(rng.randint(1, most))
            ]
            mixed = [*batch, *company]
            rng.shuffle(mixed)
            answers = {completion.request_id: completion.token_ids for completion in engine.generate(mixed)}
            for request in batch:
                compared += 1
                if answers[request.request_id] != expected[int(request.request_id)]:
                    different.append((f"among {len(mixed)}", temperature, int(request.request_id)))
            drafted = drafted[size:]
    return compared, different


def test_speculative_equals_static_on_the_demo(engine, codec):
    compared, different = differing(engine, codec, 2, (0.0, 1.2), most=6)
    assert compared == 2 * 2 * 2
    assert different == []


def differing_by_rule(engine, codec, count, temperature):
    """How many answers of each rule's drafted requests were compared with the rule's own, and which differed.

    Plain and drafted requests of all rules, and companions, wait together for 64 places. Also the forwards saved.
    """
    rng, mixed = random.Random(9), []
    for request in requests(engine, codec, count, temperature):
        for name, plain in enumerate(RULES):
            mixed.append(replace(request, request_id=f"plain {name} {request.request_id}", mode=plain))
            for number, drafted in enumerate(BY_RULE):
                mode = structs.replace(drafted, verify=plain.name, **structs.asdict(plain))
                mixed.append(replace(request, request_id=f"{number} {name} {request.request_id}", mode=mode))
        mixed.append(replace(request, request_id=f"beside {request.request_id}", mode=rng.choice(COMPANIONS)))
    rng.shuffle(mixed)
    done = {completion.request_id: completion for completion in engine.generate(mixed)}
    compared, different, saved = 0, [], 0
    for name, completion in done.items():
        kind, _, rest = name.partition(" ")
        if kind.isdigit():
            plain = done[f"plain {rest}"]
            compared += 1
            different += [name] if completion.token_ids != plain.token_ids else []
            saved += plain.stats.forwards.denoise - completion.stats.forwards.denoise - completion.stats.forwards.verify
    return compared, different, saved


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_speculative_equals_whatever_rule_it_verifies_on_the_demo(engine, codec, temperature):
    compared, different, saved = differing_by_rule(engine, codec, 1, temperature)
    assert compared == len(RULES) * len(BY_RULE)
    assert different == []
    assert saved > 0


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_speculative_equals_every_rule_on_100_problems(engine, codec):
    counts = [differing_by_rule(engine, codec, 100, temperature) for temperature in MORE_TEMPERATURES]
    compared, different = sum(count for count, _, _ in counts), [name for _, names, _ in counts for name in names]
    print(f"\nspeculative = rule in {compared - len(different)} of {compared}; differing: {different}")  # noqa: T201
    assert different == []


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_speculative_equals_static_on_300_problems(engine, codec):
    compared, different = differing(engine, codec, 300, MORE_TEMPERATURES)
    print(f"\nspeculative = static in {compared - len(different)} of {compared}; differing: {different}")  # noqa: T201
    assert different == []
