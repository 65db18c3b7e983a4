"""`Engine.progress`: the steps of requests that ask for them, after the engine's step that took them."""

from collections import defaultdict

import pytest

from service.decode.block import Step
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Remask, Speculative, Static
from service.engine import Engine, GenerationRequest
from service.model import Checkpoint, load_checkpoint
from tests.tiny import GOLDEN

PROMPT = tuple(range(3, 10))
MODES = (Static(), Dynamic(0.1), Direct(2), Direct(2, 0.02), Speculative(mrp_steps=2), Remask(0.1))


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return load_checkpoint(GOLDEN / "sdar-mrp-random-a")


def reported(name: str, mode: DecodingMode, report: bool = True) -> GenerationRequest:
    return GenerationRequest(name, PROMPT, mode, max_new_tokens=14, report_steps=report)


def test_progress_of_a_block_is_the_steps_of_its_event(checkpoint: Checkpoint) -> None:
    engine = Engine(checkpoint)
    for number, mode in enumerate(MODES):
        engine.submit(reported(str(number), mode))
    engine.submit(reported("silent", Static(), report=False))
    steps: dict[tuple[str, int], list[Step]] = defaultdict(list)
    finished = set()
    while engine.has_work:
        events = engine.step()
        for progress in engine.progress:
            assert (progress.request_id, progress.index) not in finished
            assert progress.first == len(steps[progress.request_id, progress.index])
            assert progress.steps
            assert progress.total_s >= 0
            steps[progress.request_id, progress.index] += progress.steps
        for event in events:
            finished.add((event.request_id, event.index))
            assert tuple(steps[event.request_id, event.index]) == (event.steps if event.request_id != "silent" else ())
    assert {request_id for request_id, _ in finished} == {"silent", *map(str, range(len(MODES)))}


def test_answers_do_not_depend_on_it(checkpoint: Checkpoint) -> None:
    engine = Engine(checkpoint)
    for mode in MODES:
        plain, traced = (engine.generate([reported("x", mode, report)])[0] for report in (False, True))
        assert (plain.token_ids, plain.blocks[-1].steps) == (traced.token_ids, traced.blocks[-1].steps)
