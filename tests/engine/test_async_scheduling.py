"""Steps that begin before the last one's results are read: the device has work, and every token stays the same."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from weakref import WeakSet

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from service.decode.block import MASKED, Block, Pick, Step
from service.decode.canvas import Canvas, DraftBudget
from service.decode.modes import Direct, Dynamic, Entropy, Remask, Sequential, Speculative, Static
from service.decode.policy import Evaluate, Prediction, Refine
from service.engine import BlockEvent, EngineDeps
from service.engine.drafting.costs import Curve, StepCosts
from service.engine.drafts_ahead import DraftsAhead
from service.engine.forward.model_forward import Network
from service.engine.forward.pending import Pending
from service.engine.forward.rows import MAX_DRAFT, Anchor, ForwardOutput, Row
from service.engine.forward.runner import ModelRunner
from tests.engine.helpers import DEAR_ROWS, SLOW_HOST, checked, events_of, random_requests, request_of
from tests.runners import RunnerWrapper, engine_over
from tests.thinned import fast_only
from tests.tiny import FAST_DLLM, I_DLM, tiny_checkpoint

#: forwards cost the same whatever their rows
COSTS = StepCosts(Curve(((1, 1.0), (64, 1.5))), Curve(((1, 0.1), (64, 0.2))), turn=Curve(((1, 0.6), (64, 0.6))))
#: modes whose rules name the next rows
PACED = [
    *(Static(), Static(2), Sequential(), Direct(2), Speculative("auto")),
    *(Dynamic(0.5), Dynamic(0.01), Entropy(0.5), Sequential(1, 3.0)),
]
#: modes whose next rows may begin before it is known whether the block is complete
UNCERTAIN = [
    *(Dynamic(0.9), Dynamic(0.3), Entropy(0.5), Sequential(1, 0.5), Direct(2, 0.3)),
    *(Speculative("auto", threshold=0.5), Speculative("auto", entropy_bound=1.0, verify="entropy")),
]
#: modes whose next rows need the results
UNPACED = [Remask(0.3), Speculative(0, 3)]
#: modes for which MRP drafts three times
DRAFTED = [Speculative(3), Speculative(3, 4), Speculative(3, verify="sequential"), Speculative(3, threshold=0.5)]


#: the block size of `FAST_DLLM`
SIZE = 8


class _Begun:
    """A forward that has begun. Its results alone refer to it."""


class Device(RunnerWrapper):
    """A device that counts forwards that are begun, not read, and not dropped.

    `unread`: their number at each reading, with the forward that is read.
    """

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(runner)
        self.forwards = WeakSet[_Begun]()
        self.unread: list[int] = []

    @property
    def num_unread(self) -> int:
        return len(self.forwards)

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending:
        pending, forward = self.runner.begin(network, rows), _Begun()
        self.forwards.add(forward)

        def read() -> list[Prediction]:
            self.unread.append(self.num_unread)
            self.forwards.discard(forward)
            return pending()

        return structs.replace(pending, results=read)


def answers(events: dict[str, list[BlockEvent]]) -> dict[str, tuple[tuple[int, ...], str | None]]:
    return {
        name: (tuple(token for event in request_events for token in event.token_ids), request_events[-1].finish_reason)
        for name, request_events in events.items()
    }


def steps_of(events: dict[str, list[BlockEvent]]) -> list[tuple[Step, ...]]:
    return [event.steps for request_events in events.values() for event in request_events]


@pytest.mark.parametrize("seed", fast_only({1, 2, 3}.__contains__, range(12)))
@pytest.mark.parametrize("costs", [COSTS, SLOW_HOST])
@pytest.mark.parametrize("changes", [{}, FAST_DLLM, I_DLM], ids=["sdar", "shifted", "causal"])
def test_answers_and_their_steps_are_the_same_with_and_without(seed: int, costs: StepCosts, changes) -> None:
    checkpoint = tiny_checkpoint(seed, **changes)
    requests = [replace(request, keep_steps=True) for request in random_requests(random.Random(seed), checkpoint, 13)]
    costs = costs if checkpoint.mrp else replace(costs, mrp=None)
    events = {}
    for ahead in (True, False):
        limits = {"async_scheduling": ahead, "max_running": 7, "max_rows": 24, "max_prefill_tokens": 8}
        engine, _ = engine_over(Device, checkpoint, EngineDeps(costs=costs), **limits)
        events[ahead] = events_of(engine, requests)
        assert engine.state().num_running == engine.state().kv_pages_used == 0
    assert answers(events[True]) == answers(events[False])
    for request in requests:
        if isinstance(request.mode, Speculative) and request.mode.mrp_steps == "auto":
            continue  # its drafts follow the load
        by_setting = [events[ahead][request.request_id] for ahead in (True, False)]
        forwards = [(of[-1].stats.forwards.denoise, of[-1].stats.forwards.verify) for of in by_setting]
        assert forwards[0] == forwards[1]
        steps = [[event.steps for event in of] for of in by_setting]
        assert steps[0] == steps[1]


@pytest.mark.undisturbed
@pytest.mark.parametrize("mode", PACED)
@pytest.mark.parametrize("running", [1, 6])
def test_the_next_forward_has_begun_whenever_one_is_read(mode, running) -> None:
    engine, device = engine_over(Device, tiny_checkpoint(1), EngineDeps(costs=SLOW_HOST), async_scheduling=True)
    for number in range(running):
        engine.submit(request_of(str(number), [number + 1], mode, 40))
    forwards = 0
    while engine.has_work:
        before = len(device.unread)
        if any(event.finish_reason for event in engine.step()):
            break
        assert device.num_unread >= 1  # the next step's
        forwards += len(device.unread) - before
    assert forwards > 6
    assert min(device.unread[:forwards]) >= 2


@pytest.mark.undisturbed
@pytest.mark.parametrize("mode", [Static(), Static(3), Sequential(), Direct(2), Speculative("auto")])
def test_with_shifted_outputs_only_a_blocks_first_token_is_waited_for(mode) -> None:
    """Where a rule fixes the number of picks. Elsewhere all results are."""
    checkpoint = tiny_checkpoint(1, **FAST_DLLM)
    for ahead, paced in ((True, mode), (False, Dynamic(0.5))):
        engine, device = engine_over(Device, checkpoint, EngineDeps(costs=SLOW_HOST), async_scheduling=True)
        engine.submit(request_of("x", [1], paced, 6 * SIZE))
        while engine.has_work:
            engine.step()
        waits = device.unread.count(1)
        most = 16 if mode.needs_mrp else 8  # after each block, and at the end; MRP reads a block once it is stored
        assert waits <= most if ahead else set(device.unread) == {1}


@pytest.mark.undisturbed
@pytest.mark.parametrize("mode", UNPACED)
def test_a_mode_that_needs_the_results_waits_for_them(mode) -> None:
    engine, device = engine_over(Device, tiny_checkpoint(1), EngineDeps(costs=COSTS), async_scheduling=True)
    for number in range(3):
        engine.submit(request_of(str(number), [number + 1], mode, 24))
    while engine.has_work:
        engine.step()
    assert set(device.unread) == {1}


@pytest.mark.undisturbed
def test_a_gate_waits_for_each_result_without_chains_but_at_a_blocks_last_token() -> None:
    engine, device = engine_over(Device, tiny_checkpoint(1), EngineDeps(costs=SLOW_HOST), async_scheduling=True)
    engine.submit(request_of("x", [1], Direct(1, 1.0), 24))
    while engine.has_work:
        engine.step()
    blocks, size = 24 // engine.model.block_size, engine.model.block_size
    assert set(device.unread) == {1, 2}
    assert device.unread.count(2) <= 2 * blocks < 24 * (size - 1) // size


@pytest.mark.undisturbed
@pytest.mark.parametrize("mode", DRAFTED)
def test_mrp_forwards_for_drafts_begin_together(mode) -> None:
    """Few are dropped. The drafts are the same, also where the tree does not go on with the likeliest pick."""
    checkpoint = tiny_checkpoint(2)
    requests = [request_of(str(number), [number + 1], mode, 24, keep_steps=True) for number in range(3)]
    engine, device = engine_over(Device, checkpoint, EngineDeps(costs=COSTS), async_scheduling=True)
    together, num_together = events_of(engine, requests), len(device.unread)
    assert set(device.unread) == {1, 2, 3}
    engine, device = engine_over(Device, checkpoint, EngineDeps(costs=COSTS), async_scheduling=False)
    in_turns = events_of(engine, requests)
    assert answers(in_turns) == answers(together)
    assert steps_of(in_turns) == steps_of(together)
    assert set(device.unread) == {1}
    assert num_together <= 1.2 * len(device.unread)


def test_a_forward_of_mrp_that_has_begun_serves_the_state_after_the_rules_picks_alone() -> None:
    """Another state has the other pick, and another query has another anchor."""
    state, ahead = Block((MASKED, MASKED)), DraftsAhead(Static().rule, 2)
    read, other = [Prediction((0, 1), (5, 6), (0.9, 0.1), handle=handle) for handle in ("read", "other")]
    likeliest, unlikely = state.reveal([Pick(0, 5, 0.9)]), state.reveal([Pick(1, 6, 0.1)])
    follows = []
    for query in (Refine(read, likeliest), Refine(read, unlikely), Refine(other, likeliest), None):
        ahead.receive((state,), (read,), query)
        follows.append(ahead.follows)
    assert follows == [True, False, False, False]


def test_mrp_reads_the_state_after_each_state_that_the_backbone_has_read() -> None:
    """If it has a line and two masked positions. Later forwards have the same rows."""
    ahead = DraftsAhead(Static().rule, 4)
    states = [Block((5,) * count + (MASKED,) * (4 - count)) for count in (0, 2, 1)]
    read = ahead.revealing([Row(state, 0, (), writes_kv=False) for state in [*states, *[states[0]] * 6]])
    assert [row.draft for row in read] == [*range(1 + MAX_DRAFT), 0]
    assert [row.rule is None for row in read] == [False] * (1 + MAX_DRAFT) + [True]
    anchors = [Anchor(ForwardOutput(torch.zeros(9, 4, 2)), index) for index in range(len(read))]
    ahead.begin(read, anchors)
    first = ahead.rows()
    assert [(row.draft, row.state.tokens.count(MASKED)) for row in first] == [
        (0, 3),
        (2, 2),
        *[(n, 3) for n in range(3, 8)],
    ]
    assert [row.anchor for row in first] == [anchors[row.draft] for row in first]
    ahead.begin(first[:2], anchors[:2])
    ahead.begin(ahead.rows(), anchors[:2])
    assert [(row.draft, row.state.tokens.count(MASKED)) for row in ahead.rows()] == [(0, 1), (2, 0)]
    ahead.begin(ahead.rows(), anchors[:2])
    assert ahead.rows() == []


def test_drafts_that_pay_are_read_where_steps_may_begin_ahead_too() -> None:
    engine, _ = engine_over(Device, tiny_checkpoint(2), EngineDeps(costs=COSTS), async_scheduling=True)
    (done,) = engine.generate([request_of("x", [1], Speculative("auto"), 24)])
    assert done.stats.drafts_accepted


@pytest.mark.undisturbed
def test_few_requests_that_need_the_results_sit_out_every_second_step() -> None:
    engine, device = engine_over(Device, tiny_checkpoint(1), EngineDeps(costs=COSTS), async_scheduling=True)
    engine.submit(request_of("waits", [1], Remask(1.0), 16))
    for number in range(4):
        engine.submit(request_of(str(number), [number + 1], Static(), 64))
    while engine.has_work:
        if any(event.finish_reason for event in engine.step()):
            break
    assert min(device.unread) >= 2


def test_a_request_may_be_aborted_while_its_forward_is_under_way() -> None:
    checkpoint = tiny_checkpoint(2)
    requests = [request_of(str(number), [number + 1], mode, 24) for number, mode in enumerate(PACED)]
    alone, _ = engine_over(Device, checkpoint, async_scheduling=False, deps=EngineDeps(costs=SLOW_HOST))
    expected = answers(events_of(alone, requests))
    engine, device = engine_over(Device, checkpoint, async_scheduling=True, deps=EngineDeps(costs=SLOW_HOST))
    for request in requests:
        engine.submit(request)
    events = engine.step()
    assert device.num_unread
    for number in (0, 3, 4):
        engine.abort(str(number))
    while engine.has_work:
        events += engine.step()
    for number in (1, 2):
        request_events = [event for event in events if event.request_id == str(number)]
        assert answers({str(number): request_events})[str(number)] == expected[str(number)]
    assert engine.state().kv_pages_used == 0


@pytest.mark.parametrize("seed", fast_only({1, 2}.__contains__, range(6)))
@pytest.mark.parametrize("changes", [{}, FAST_DLLM, I_DLM], ids=["sdar", "shifted", "causal"])
def test_every_forward_is_right_where_prefixes_are_shared_and_requests_leave(seed: int, changes) -> None:
    """Every reading is compared with a recomputation of its whole sequence."""
    rng, checkpoint = random.Random(seed), tiny_checkpoint(seed, **changes)
    limits = {
        "async_scheduling": True,
        "max_running": 5,
        "max_rows": 20,
        "max_prefill_tokens": 4,
        "kv_cache_tokens": 512,
    }
    engine, runner = checked(checkpoint, COSTS if checkpoint.mrp else replace(COSTS, mrp=None), **limits)
    drawn = random_requests(rng, checkpoint, 8)
    copies = [replace(request, request_id=f"{request.request_id}-{turn}") for turn in range(3) for request in drawn]
    for request in copies:
        engine.submit(request)
    while engine.has_work:
        engine.step()
        if rng.random() < 0.1:
            engine.abort(rng.choice(copies).request_id)
    assert runner.compared > 100
    assert engine.state().kv_pages_used == 0


@pytest.mark.parametrize("mode", UNCERTAIN)
@pytest.mark.parametrize("seed", fast_only((0).__eq__, range(4)))
def test_every_forward_is_right_where_free_rows_become_dear_and_free_again(mode, seed: int) -> None:
    """Within a block: the first request goes ahead while it is alone, and in turns while others come and go."""
    costs = replace(SLOW_HOST, backbone=Curve(((1, 10.0), (3, 10.0), (4, 100.0), (64, 1000.0))))
    engine, runner = checked(tiny_checkpoint(seed), costs, async_scheduling=True)
    engine.submit(request_of("first", [5, 6, 7], mode, 72))
    events, ahead, alone, num_others = list[BlockEvent](), list[bool](), 0, 0
    while engine.has_work:
        events += engine.step()
        ahead.append(bool(engine._steps))
        alone = alone + 1 if engine.state().num_running == 1 else 0
        if alone == 2 + num_others % 5:
            alone = 0
            for _ in range(6):
                engine.submit(request_of(f"other {num_others}", [num_others % 50, 9], mode, 2))
                num_others += 1
    changes = [before < after for before, after in pairwise(ahead) if before != after]
    assert changes.count(True) >= 2 <= changes.count(False)
    assert runner.compared > 50
    in_turns, _ = engine_over(Device, tiny_checkpoint(seed), EngineDeps(costs=costs), async_scheduling=False)
    (done,) = in_turns.generate([request_of("first", [5, 6, 7], mode, 72)])
    assert done.token_ids == tuple(
        token for event in events if event.request_id == "first" for token in event.token_ids
    )


@given(st.data())
def test_a_policy_keeps_its_pace(data) -> None:
    """The numbers of masked positions that a policy's forwards read are those that its pace foretells."""
    length = data.draw(st.integers(1, 16))
    mode = data.draw(st.sampled_from([Static(1), Static(3), Sequential(1), Sequential(4), Direct(1), Direct(3)]))
    head = data.draw(st.integers(0, length - 1))
    canvas = Canvas(Block((7,) * head + (MASKED,) * (length - head)))
    decoding, query, masked, since = mode.decode(canvas), None, length - head, 0
    assert mode.pace is not None
    query = next(decoding, None)
    while masked:
        refines = 0 < since <= mode.pace.mrp_steps
        assert query is not None
        assert isinstance(query, Evaluate) is not refines
        state = query.states[0] if isinstance(query, Evaluate) else query.state
        assert len(state.masked) == masked
        confidences = data.draw(st.lists(st.floats(0, 1), min_size=masked, max_size=masked))
        masked, since = max(0, masked - mode.pace.picks), since + 1 if since < mode.pace.mrp_steps + refines * 0 else 0
        try:
            query = decoding.send((Prediction(state.masked, (5,) * len(confidences), confidences),))
        except StopIteration:
            query = None
    assert query is None


def test_stored_blocks_do_not_wait_for_a_refinement() -> None:
    """Each step begins ahead, and may complete a block. So no step ends without one under way, and no draft comes."""
    row = Curve(((1, 1.0), (16, 1.0)))
    costs = StepCosts(row, Curve(((1, 0.001), (16, 0.001))), turn=Curve(((1, 0.6), (64, 0.6))))
    limits = {"async_scheduling": True, "max_running": 8, "max_rows": 16}
    engine, _ = engine_over(Device, tiny_checkpoint(1), EngineDeps(costs=costs), **limits)
    engine.submit(request_of("first", [5, 6, 7], Speculative("auto", threshold=0.01), 240))
    engine.step()
    for number in range(7):
        engine.submit(request_of(str(number), [number + 1], Dynamic(0.01), 240))
    longest, [first, *_] = 0, engine._scheduler.running
    while first.finish_reason is None:
        engine.step()
        longest = max(longest, len(first.blocks.for_mrp))
    assert longest <= 2
    assert first.finish_reason == "length"  # also the last block's forward ahead is dropped without an error


def test_requests_beyond_the_lines_of_the_first_ones_go_ahead_too() -> None:
    engine, device = engine_over(Device, tiny_checkpoint(1), async_scheduling=True, max_running=2)
    for number in range(6):
        device.unread = []
        engine.generate([request_of(str(number), [number + 1], Static(), 16)])
        assert max(device.unread) == 2


@pytest.mark.parametrize("ahead", [True, False])
def test_no_drafts_are_searched_for_a_forward_that_has_begun(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = engine_over(Device, tiny_checkpoint(1), EngineDeps(costs=SLOW_HOST), async_scheduling=ahead)
    engine.submit(request_of("x", [5, 6, 7], Speculative("auto"), 40))
    engine.step()
    budget, [running] = DraftBudget(0.0, 8, 2), engine._scheduler.running
    monkeypatch.setattr(type(running.drafts), "budget", lambda _: budget)
    assert running._canvas.budget() == (DraftBudget() if ahead else budget)


class Writes(Device):
    """A device that remembers the blocks that its forwards store."""

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(runner)
        self.stored: list[int] = []

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending:
        if network == "backbone":
            final = self.model.states.with_states(rows)
            self.stored += [row.index for row in final if row.writes_kv and row.state.complete]
        return super().begin(network, rows)


@pytest.mark.parametrize("mode", [*PACED, *UNCERTAIN])
def test_each_block_is_stored_once_and_in_its_order(mode) -> None:
    engine, device = engine_over(Writes, tiny_checkpoint(1), EngineDeps(costs=SLOW_HOST), async_scheduling=True)
    engine.generate([request_of("x", [5, 6, 7, 8, 9], mode, 48)])
    assert device.stored == [*range(len(device.stored))]
    assert len(device.stored) >= 12


@pytest.mark.parametrize("mode", UNCERTAIN[:4])
def test_a_block_that_may_be_complete_waits_while_rows_are_dear(mode) -> None:
    engine, device = engine_over(Device, tiny_checkpoint(1), EngineDeps(costs=DEAR_ROWS), async_scheduling=True)
    engine.generate([request_of(str(number), [number + 1], mode, 16) for number in range(3)])
    assert set(device.unread) == {1}
