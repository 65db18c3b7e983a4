"""The order of forwards and waits on the device, and failures while a step ahead is under way."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, pairwise

import pytest
import torch
from msgspec import structs

from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Remask, Sequential, Speculative, Static
from service.decode.modes.speculative import VERIFIED
from service.engine import BlockEvent, Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.engine import engine as engine_module
from service.engine.drafting.planner import DRAFTS, PLAIN, REFINED
from service.engine.forward import oom_backoff
from service.engine.step import RunningStep
from service.errors import OutOfMemory
from service.model import LoadOptions, load_checkpoint
from service.model.transfer import HostCopies
from service.model.weight_update import apply_update, load_update
from tests.engine.helpers import DEAR_ROWS, FREE_ROWS, SLOW_HOST, events_of
from tests.other_weights import other_weights
from tests.plans import use_any_plans, use_plan, use_plans
from tests.preemptions import use_preemptions
from tests.rules import Halving
from tests.thinned import fast_only, fast_rows
from tests.tiny import GOLDEN, GOLDEN_NAMES
from tests.vcuda.decoding import ALL_ON, on_device, waits
from tests.vcuda.device import Counts

NAME = GOLDEN_NAMES[0]
SAMPLED, FILTERED = SamplingParams(0.7, seed=3), SamplingParams(0.7, 0.9, 20, seed=3)
#: modes and parameters of which a request names its next rows before its predictions are read
PACED: dict[str, list[tuple[DecodingMode, SamplingParams]]] = {
    "static": [(Static(), SamplingParams())],
    "static, 2 tokens": [(Static(2), SamplingParams())],
    "sequential": [(Sequential(), SamplingParams())],
    "direct": [(Direct(2), SamplingParams())],
    "auto without drafts": [(Speculative("auto"), SamplingParams())],
    "sampled": [(Static(), SAMPLED), (Direct(2), SAMPLED), (Sequential(), SAMPLED)],
    "filtered": [(Static(), FILTERED), (Direct(2), FILTERED), (Static(2), FILTERED)],
}
#: and drafts that the device makes: in a tree, in a line, few of them
BY_DEVICE: list[tuple[DecodingMode, SamplingParams]] = [
    *[(Speculative("auto"), sampling) for sampling in (SamplingParams(), SAMPLED, FILTERED)],
    *[(Speculative("auto", verify="sequential"), SAMPLED), (Speculative("auto", tokens_per_step=2), SAMPLED)],
    (Speculative("auto", max_drafts=2), SAMPLED),
]
PACED["mixed"] = [pairs[-1] for pairs in PACED.values()]
MIXED: list[tuple[DecodingMode, SamplingParams]] = [
    *PACED["mixed"],
    *BY_DEVICE[::2],
    *[(Direct(3, 0.02), SAMPLED), (Direct(2, 0.005), SAMPLED), (Dynamic(0.3), SAMPLED)],
]
#: and those of which it does so if a second row is free, since a block may be complete
GATED: dict[str, list[tuple[DecodingMode, SamplingParams]]] = {
    "gate": [(Direct(2, 0.02), SamplingParams())],
    "gates": [(Direct(count, threshold), SAMPLED) for count in (1, 2, 4) for threshold in (0.001, 0.05, 0.3)],
    "gates beside others": [
        (Direct(3, 0.02), SAMPLED),
        (Dynamic(0.3), SAMPLED),
        (Direct(1), FILTERED),
        (Static(), SAMPLED),
    ],
}
UNPACED: dict[str, DecodingMode] = {
    "dynamic": Dynamic(0.9),
    "remask": Remask(0.5),
    "direct": Direct(2, 0.3),
    "drafts of the backbone": Speculative(0, 3),
}
#: trees for which MRP drafts twice
TREES: dict[str, DecodingMode] = {
    "one token": Speculative(2, 4),
    "two tokens": Speculative(2, 4, tokens_per_step=2),
    "in order": Speculative(2, 4, verify="sequential"),
    "a threshold": Speculative(2, 3, threshold=0.3),
}
#: modes for which MRP drafts three times
DRAFTED: dict[str, DecodingMode] = {"chain": Speculative(3), "tree": Speculative(3, 4)}

Answers = dict[str, tuple[tuple[int, ...], str | None]]
#: requests and the folder of a checkpoint -> their answers, for several tests
_EXPECTED: dict[str, Answers] = {}


def requests_of(pairs: Sequence[tuple[DecodingMode, SamplingParams]], count: int, tokens: int = 24):
    """Requests with the modes and parameters in turn; their prompts begin alike."""
    return [
        GenerationRequest(
            str(number),
            (*range(40, 52), 60 + number),
            pairs[number % len(pairs)][0],
            structs.replace(pairs[number % len(pairs)][1], seed=number),
            tokens,
        )
        for number in range(count)
    ]


def engine_on_device(costs=DEAR_ROWS, **limits):
    return Engine(on_device(NAME), replace(ALL_ON, **limits), deps=EngineDeps(costs=costs))


def answers(events: dict[str, list[BlockEvent]]) -> Answers:
    return {
        name: (tuple(token for event in parts for token in event.token_ids), parts[-1].finish_reason)
        for name, parts in events.items()
    }


def expected_answers(requests: Sequence[GenerationRequest], folder=GOLDEN / NAME) -> Answers:
    """The answers of an engine on the CPU that reads each forward before the next one begins."""
    key = f"{requests} {folder}"
    if key not in _EXPECTED:
        _EXPECTED[key] = answers(events_of(host_engine(folder), requests))
    return _EXPECTED[key]


def host_engine(folder, **limits):
    host = load_checkpoint(folder, LoadOptions(torch.float32, "cpu"))
    config = EngineConfig(kv_cache_tokens=4096, async_scheduling=False, **limits)
    return Engine(host, config, deps=EngineDeps(costs=DEAR_ROWS))


def drafts_of(engine, requests):
    """By request the positions and tokens of each step's drafts, and the number of those that were accepted."""
    events = events_of(engine, [replace(request, keep_steps=True) for request in requests])
    steps = {name: [step for event in parts for step in event.steps] for name, parts in events.items()}
    return {
        name: [([(pick.position, pick.token) for pick in step.drafted], step.accepted) for step in of]
        for name, of in steps.items()
    }


def decoded(engine, device, requests):
    """Decodes the requests. -> their answers, and the later replays of each wait until the first request has ended."""
    device.counts = Counts()
    events: dict[str, list[BlockEvent]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.submit(request)
    end = None
    while engine.has_work:
        before = len(device.counts.later_replays)
        for event in engine.step():
            events[event.request_id].append(event)
            if event.finish_reason is not None and end is None:
                end = before
    return answers(events), device.counts.later_replays[:end]


def assert_launched_before_waits(device, engine, requests, num_waits):
    """The second time, since forwards without a graph are not among the replays. `num_waits`: at least."""
    expected = expected_answers(requests)
    assert answers(events_of(engine, requests)) == expected
    tokens, later_replays = decoded(engine, device, requests)
    assert tokens == expected
    assert len(later_replays) >= num_waits
    assert min(later_replays) >= 1
    assert waits(device.counts) == []


@pytest.mark.parametrize(
    ("kind", "count"),
    fast_rows(
        lambda kind, count: count == 8 or kind in {"static", "direct"},
        [(kind, count) for kind in PACED for count in (1, 8) if (kind, count) != ("mixed", 1)],
    ),
)
def test_the_next_forward_is_launched_before_each_wait(device, kind, count, monkeypatch):
    use_plan(monkeypatch, PLAIN)
    assert_launched_before_waits(device, engine_on_device(), requests_of(PACED[kind], count), num_waits=6)


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("kind", GATED)
def test_the_next_forward_is_launched_before_each_wait_where_rows_are_free(device, kind, count):
    assert_launched_before_waits(device, engine_on_device(SLOW_HOST), requests_of(GATED[kind], count), num_waits=4)


@pytest.mark.parametrize("count", [1, 12])
def test_the_device_verifies_its_drafts_before_the_host_reads_them(device, count, monkeypatch):
    """Each round has one wait, with the next round's forward behind it, and fewer rounds than tokens."""
    use_plan(monkeypatch, DRAFTS)
    requests, engine = requests_of(BY_DEVICE, count, 40), engine_on_device(FREE_ROWS, max_rows=128)
    assert_launched_before_waits(device, engine, requests, num_waits=6)
    stats = [events[-1].stats for events in events_of(engine, requests).values()]
    num_forwards = [part.forwards.denoise + part.forwards.verify for part in stats]
    assert sum(part.drafts_accepted for part in stats) > count
    assert sum(num_forwards) <= 41 * count - sum(part.drafts_accepted for part in stats) / 2
    assert sum(part.forwards.mrp for part in stats) == 0
    limited = [part for request, part in zip(requests, stats, strict=True) if request.mode.max_drafts == 2]
    assert all(part.drafts_proposed <= 2 * part.forwards.verify for part in limited)
    assert len(limited) == count // 6


def test_the_host_makes_drafts_that_decide(device, monkeypatch):
    """The device would accept other drafts than a margin does."""
    use_plan(monkeypatch, DRAFTS)
    requests, engine = requests_of([(Speculative("auto", margin=0.3), SAMPLED)], 2), engine_on_device(FREE_ROWS)
    followed = list[bool]()
    begin_hook(engine, lambda rows, *, ahead: followed.extend([row.drafts_follow for row in rows]))
    stats = [events[-1].stats for events in events_of(engine, requests).values()]
    assert sum(part.drafts_proposed for part in stats) > 0
    assert followed
    assert not any(followed)


@pytest.mark.parametrize("seed", fast_only((0).__eq__, range(4)))
def test_other_plans_may_begin_and_end_between_drafts_of_the_device(device, seed, monkeypatch):
    use_any_plans(monkeypatch, seed)
    requests, engine = requests_of([*BY_DEVICE, *MIXED], 20, 40), engine_on_device(FREE_ROWS, max_rows=128)
    for _ in range(2):
        assert answers(events_of(engine, requests)) == expected_answers(requests)
    assert waits(device.counts) == []


@pytest.mark.parametrize("costs", [SLOW_HOST, DEAR_ROWS])
@pytest.mark.parametrize("size", fast_only((8).__eq__, [1, 2, 8, 32]))
def test_direct_has_its_answers_and_forwards_at_any_block_size(device, size, costs):
    """Ahead where rows are free, else in turns."""
    modes = [Direct(min(count, size), threshold) for count in (1, 3, 4) for threshold in (None, 0.002, 0.01, 0.1)]
    requests = requests_of([(mode, SAMPLED) for mode in modes], len(modes), 40)
    by_device = {}
    for name, options in (("cpu", {"async_scheduling": False}), ("cuda", {})):
        checkpoint = load_checkpoint(GOLDEN / NAME, LoadOptions(torch.float32, name, block_size=size))
        engine = Engine(checkpoint, replace(ALL_ON, attention="auto", **options), deps=EngineDeps(costs=costs))
        events = events_of(engine, requests)
        forwards = [parts[-1].stats.forwards for parts in events.values()]
        by_device[name] = answers(events), [(count.denoise, count.verify) for count in forwards]
    assert by_device["cuda"] == by_device["cpu"]


@pytest.mark.parametrize("mode", [Direct(2), Direct(3, 0.02)])
def test_direct_waits_once_a_round(device, mode):
    """The backbone's results and those of MRP's forwards come together."""
    requests, engine = requests_of([(mode, SAMPLED)], 8), engine_on_device()
    assert answers(events_of(engine, requests)) == expected_answers(requests)
    device.counts = Counts()
    denoise = [events[-1].stats.forwards.denoise for events in events_of(engine, requests).values()]
    assert device.counts.event_waits <= max(denoise) + 1
    assert device.counts.replays >= 2 * device.counts.event_waits


@pytest.mark.parametrize("count", fast_only((8).__eq__, [1, 8]))
@pytest.mark.parametrize("kind", UNPACED)
def test_a_mode_without_a_pace_reads_each_forward_before_the_next_one(device, kind, count):
    requests, engine = requests_of([(UNPACED[kind], SamplingParams())], count), engine_on_device()
    expected = expected_answers(requests)
    assert answers(events_of(engine, requests)) == expected
    tokens, later_replays = decoded(engine, device, requests)
    assert tokens == expected
    assert len(later_replays) >= 6
    assert set(later_replays) == {0}


@pytest.mark.parametrize("count", fast_only((8).__eq__, [1, 8]))
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(0.8, seed=3)])
@pytest.mark.parametrize(("kind", "candidates"), [("chain", 8), ("tree", 0)])
def test_mrp_forwards_for_drafts_are_launched_together(device, kind, candidates, sampling, count):
    requests, engine = requests_of([(DRAFTED[kind], sampling)], count), engine_on_device(draft_candidates=candidates)
    expected = expected_answers(requests)
    assert answers(events_of(engine, requests)) == expected
    tokens, later_replays = decoded(engine, device, requests)
    assert tokens == expected
    assert set(later_replays) == {0, 3}  # three replays, or none: they come before their only copy
    assert 2 * device.counts.replays >= 3 * device.counts.event_waits
    assert waits(device.counts) == []


@pytest.mark.parametrize("count", fast_only((4).__eq__, [1, 4]))
@pytest.mark.parametrize("candidates", [0, 8])
@pytest.mark.parametrize("kind", TREES)
def test_mrp_drafts_before_the_host_reads_the_backbones_results(device, kind, candidates, count):
    """MRP reads the state after each state, so the drafts are those of an engine that reads each forward first."""
    requests, engine = requests_of([(TREES[kind], SAMPLED)], count), engine_on_device(draft_candidates=candidates)
    expected = drafts_of(host_engine(GOLDEN / NAME, draft_candidates=candidates), requests)
    assert drafts_of(engine, requests) == expected
    _, later_replays = decoded(engine, device, requests)
    idle = later_replays.count(0)
    assert set(later_replays) == {0, 2}
    assert idle <= 1.4 * later_replays.count(2)  # a round's last wait; in turns there are two for each of MRP's
    assert waits(device.counts) == []


def test_mrp_drafts_for_a_tree_beside_direct(device):
    """Each has replays of its own, as one draws from candidates and the other from all tokens."""
    pairs = [(Direct(2), SAMPLED), (TREES["one token"], SAMPLED)]
    requests, engine = requests_of(pairs, 4), engine_on_device(draft_candidates=8)
    assert answers(events_of(engine, requests)) == expected_answers(requests)
    _, later_replays = decoded(engine, device, requests)
    assert later_replays.count(0) <= 1.6 * later_replays.count(2)


def test_mrp_does_not_draft_behind_a_forward_of_another_plan(device, monkeypatch):
    """The query asks for MRP's drafts, but the plan changes before its forward begins."""
    has_mrp = defaultdict(set)  # by plan, whether a forward of MRP begins with the backbone's

    class Recorded(RunningStep):
        def __init__(self, plan, backoff, planner):
            super().__init__(plan, backoff, planner)
            has_mrp[planner.plan].add("mrp" in [forward.network for forward in self._forwards])

    monkeypatch.setattr(engine_module, "RunningStep", Recorded)
    plans = cycle((REFINED, REFINED, PLAIN, PLAIN))  # the plan, and that with which requests start
    use_plans(monkeypatch, lambda _: next(plans))
    requests = requests_of([(Speculative("auto"), SamplingParams())], 3, 12)
    assert answers(events_of(engine_on_device(FREE_ROWS), requests)) == expected_answers(requests)
    assert has_mrp == {REFINED: {True, False}, PLAIN: {False}}


def test_no_result_of_mrp_is_waited_for_that_no_request_needs(device):
    """A block's last round needs none, and nor does an answer's."""
    requests, engine = requests_of([(TREES["in order"], SamplingParams())], 1), engine_on_device(draft_candidates=8)
    engine.generate(requests)
    _, later_replays = decoded(engine, device, requests)
    assert [2, 2] in [[*pair] for pair in pairwise(later_replays)]


def test_a_rule_that_the_device_does_not_know_goes_in_turns(device, monkeypatch):
    """Also where it is verified, and beside modes that go ahead."""
    monkeypatch.setitem(VERIFIED, Halving.name, Halving)  # type: ignore[arg-type]
    monkeypatch.setattr(Speculative, "check", lambda *_: None)  # the knob allows the modes of its import
    drafts = [Speculative(steps, verify=Halving.name) for steps in ("auto", 0, 2)]
    pairs = [(mode, sampling) for mode in (Halving(), *drafts, Static(), Direct(2)) for sampling in (SAMPLED, FILTERED)]
    requests, engine = requests_of(pairs, len(pairs)), engine_on_device(SLOW_HOST)
    assert answers(events_of(engine, requests)) == expected_answers(requests)
    alone, later_replays = decoded(engine, device, requests[:1])
    assert alone == expected_answers(requests[:1])
    assert set(later_replays) == {0}


@pytest.mark.parametrize("seed", fast_only((1).__eq__, range(6)))
def test_replays_beside_requests_that_leave_change_no_answer(device, seed):
    """Requests of several modes, some of which are aborted, in batches of several sizes."""
    rng, num_replayed = random.Random(seed), 0
    modes = [*DRAFTED.values(), *UNPACED.values(), Speculative(1), Speculative(4, 6), Speculative(3, threshold=0.4)]
    modes += [mode for pairs in GATED.values() for mode, _ in pairs]
    samplings = [SamplingParams(temperature, seed=seed + 7) for temperature in (0.0, 0.0, 0.7, 1.2)]
    requests = requests_of([(rng.choice(modes), rng.choice(samplings)) for _ in range(14)], 14, 30)
    expected, aborted, events = expected_answers(requests), set[str](), defaultdict[str, list[BlockEvent]](list)
    limits = {"max_rows": rng.choice([12, 24, 64]), "max_running": rng.choice([3, 7, 14])}
    engine = engine_on_device(rng.choice([DEAR_ROWS, SLOW_HOST]), draft_candidates=8, **limits)
    begin_replays = engine._runner.begin_replays

    def counted(rows, counts):
        nonlocal num_replayed
        replays = begin_replays(rows, counts)
        num_replayed += replays is not None and rows[0].anchor is not None
        return replays

    engine._runner.begin_replays = counted
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        for event in engine.step():
            events[event.request_id].append(event)
        if rng.random() < 0.05:
            aborted.add(name := rng.choice(requests).request_id)
            engine.abort(name)
    finished = expected.keys() - aborted
    assert answers({name: events[name] for name in finished}) == {name: expected[name] for name in finished}
    assert num_replayed >= 5
    assert engine.state().num_running == engine.state().kv_pages_used == 0


# --- failures while a step ahead is under way ------------------------------------------------------------


def begin_hook(engine, before):
    """Lets `before` see the rows of all forwards and replays that begin, and whether it is ahead of results."""
    begin, begin_replays = engine._runner.begin, engine._runner.begin_replays

    def hooked(network, rows):
        before(rows, ahead=bool(engine._steps))
        return begin(network, rows)

    def hooked_replays(rows, counts):
        before(rows, ahead=bool(engine._steps))
        return begin_replays(rows, counts)

    engine._runner.begin, engine._runner.begin_replays = hooked, hooked_replays


def continued(requests: Sequence[GenerationRequest], whole: Answers) -> list[GenerationRequest]:
    """Requests whose prompts end with most of the answers, so that they read the blocks that answers shared."""
    return [
        replace(request, prompt_token_ids=request.prompt_token_ids + whole[request.request_id][0][:20])
        for request in requests
    ]


@pytest.mark.parametrize("spare_bytes", fast_only({0, 10_000}.__contains__, [0, 300, 10_000, 2**16]))
def test_a_step_ahead_without_memory_runs_in_parts(device, spare_bytes, monkeypatch):
    """`spare_bytes`: a forward fails before or after its replay, or in its sampling. Larger parts are tried soon."""
    monkeypatch.setattr(oom_backoff, "_PATIENCE", 4)
    requests, engine = requests_of(MIXED, 10), engine_on_device(SLOW_HOST, max_rows=24)
    engine.prepare()
    failures = 0

    def limit_memory(rows, *, ahead):
        nonlocal failures
        device.other_bytes = 0
        if ahead and len(rows) > 2:
            device.other_bytes = device.total_bytes - device.live_bytes - spare_bytes
            failures += 1

    begin_hook(engine, limit_memory)
    assert answers(events_of(engine, requests)) == expected_answers(requests)
    assert failures >= 4
    assert engine.state().kv_pages_used == 0


@pytest.mark.parametrize("kind", ["static", "gates"])
def test_a_capture_without_memory_reveals_nothing(device, kind):
    """The capture of a graph runs the forward first, which reveals picks. Its forward is tried again."""
    requests, engine = requests_of((PACED | GATED)[kind], 8), engine_on_device(SLOW_HOST)
    begin_capture, failures = device.begin_capture, 0

    def limited(recording):
        nonlocal failures
        begin_capture(recording)
        if engine._steps and failures < 6:
            failures += 1
            device.other_bytes = device.total_bytes - device.live_bytes

    device.begin_capture = limited
    begin_hook(engine, lambda rows, *, ahead: setattr(device, "other_bytes", 0))
    events, expected = events_of(engine, requests), expected_answers(requests)
    assert failures
    whole = {name for name, parts in events.items() if not isinstance(parts[-1].error, OutOfMemory)}
    assert whole
    assert answers({name: events[name] for name in whole}) == {name: expected[name] for name in whole}


@pytest.mark.parametrize("kind", ["direct", "gates"])
def test_replays_without_memory_on_the_host_reveal_nothing(device, kind, monkeypatch):
    """Pinned memory runs out twice where results are to be copied. The forwards are tried again."""
    requests, engine = requests_of((PACED | GATED)[kind], 4), engine_on_device(SLOW_HOST)
    engine.prepare()
    add, failures = HostCopies.add, 0

    def scarce(copies, tables):
        nonlocal failures
        if engine._steps and failures < 2:
            failures += 1
            raise torch.OutOfMemoryError("CUDA error: out of memory")
        return add(copies, tables)

    monkeypatch.setattr(HostCopies, "add", scarce)
    assert answers(events_of(engine, requests)) == expected_answers(requests)
    assert failures == 2


@pytest.mark.parametrize("seed", fast_only((0).__eq__, range(4)))
def test_a_row_ahead_without_memory_ends_its_request_alone(device, seed):
    """Rows without memory end their requests. Others are right, and later requests that share their blocks, too."""
    rng, requests = random.Random(seed), requests_of(MIXED, 10)
    engine, expected = engine_on_device(SLOW_HOST, kv_cache_tokens=512), expected_answers(requests)
    scarce = True

    def limit_memory(rows, *, ahead):
        device.other_bytes = 0
        chance = 0.5 if len(rows) > 1 else 0.1 if rows[0].writes_kv else 0.01
        if scarce and ahead and rng.random() < chance:
            device.other_bytes = device.total_bytes - device.live_bytes - rng.choice([0, 300, 2000])

    begin_hook(engine, limit_memory)
    events = events_of(engine, requests)
    failed = {name for name, parts in events.items() if isinstance(parts[-1].error, OutOfMemory)}
    assert 0 < len(failed) < 10
    for name, (tokens, reason) in answers(events).items():
        if name in failed:
            assert (tokens, reason) == (expected[name][0][: len(tokens)], "abort")
        else:
            assert (tokens, reason) == expected[name]
    assert engine.state().kv_pages_used == 0
    scarce = False
    longer = continued(requests, expected)
    assert answers(events_of(engine, longer)) == expected_answers(longer)


@pytest.mark.parametrize(
    ("seed", "prefix_cache"),
    fast_rows(
        lambda seed, prefix_cache: seed == prefix_cache, [(seed, value) for seed in range(3) for value in (False, True)]
    ),
)
def test_new_requests_reuse_the_pages_of_a_step_that_is_dropped(device, seed, prefix_cache):
    """The cache has pages for few requests. Each one that is aborted makes room for the next one at once."""
    rng = random.Random(seed)
    requests = requests_of(MIXED, 21)
    engine = engine_on_device(SLOW_HOST, kv_cache_tokens=5 * 40, prefix_cache=prefix_cache)
    events: dict[str, list[BlockEvent]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.submit(request)
    aborted = set()
    while engine.has_work:
        running = [entry.request.request_id for entry in engine._scheduler.running]
        if running and engine._steps and len(aborted) < 12:
            aborted.add(name := rng.choice(running))
            engine.abort(name)
        for event in engine.step():
            events[event.request_id].append(event)
    assert len(aborted) == 12
    finished = {name: parts for name, parts in events.items() if name not in aborted}
    expected = expected_answers(requests)
    assert answers(finished) == {name: expected[name] for name in finished}
    assert engine.state().kv_pages_used == 0
    longer = continued(requests, expected)
    assert answers(events_of(engine, longer)) == expected_answers(longer)


@pytest.mark.parametrize(
    ("seed", "prefix_cache"),
    fast_rows(
        lambda seed, prefix_cache: seed == prefix_cache, [(seed, value) for seed in range(3) for value in (False, True)]
    ),
)
def test_requests_that_lose_their_pages_between_steps_ahead_have_the_same_answers(
    device, monkeypatch, seed, prefix_cache
):
    """Kernels, graphs and the state table: the pages of resumed requests are others."""
    requests = requests_of([*MIXED, *GATED["gates"], (DRAFTED["chain"], SAMPLED), (DRAFTED["tree"], SAMPLED)], 24)
    expected = expected_answers(requests)
    disturbed = use_preemptions(monkeypatch, 0.15, seed)
    engine = engine_on_device(SLOW_HOST, kv_cache_tokens=1024, prefix_cache=prefix_cache)
    assert answers(events_of(engine, requests)) == expected
    assert disturbed.preempted_total > 12
    assert engine.state().kv_pages_used == 0


@pytest.mark.parametrize(("seed", "kind"), list(enumerate(["static", "direct", "sampled", "mixed", "gates"])))
def test_answers_end_at_their_stop_tokens(device, seed, kind):
    """The stop tokens are tokens of the answers. Prompts share blocks, and the second answers find them cached."""
    rng, requests = random.Random(seed), requests_of((PACED | GATED)[kind], 8)
    whole = expected_answers(requests)
    stopped = [
        replace(request, stop_token_ids=frozenset({rng.choice(whole[request.request_id][0])})) for request in requests
    ]
    expected = expected_answers(stopped)
    assert len({len(tokens) for tokens, _ in expected.values()}) > 3
    assert {reason for _, reason in expected.values()} == {"stop"}
    engine = engine_on_device(SLOW_HOST)
    for _ in range(2):
        assert answers(events_of(engine, stopped)) == expected
        assert engine.state().kv_pages_used == 0
    longer = continued(requests, whole)
    assert answers(events_of(engine, longer)) == expected_answers(longer)


@pytest.mark.parametrize("num_steps", fast_only((4).__eq__, [1, 4]))
def test_the_engine_sleeps_and_gets_weights_with_a_dropped_step_under_way(device, tmp_path, num_steps):
    """First it sleeps, then it gets new weights. After each it answers as a new engine."""
    checkpoint = on_device(NAME)
    engine = Engine(checkpoint, replace(ALL_ON, max_rows=24), deps=EngineDeps(costs=SLOW_HOST))
    requests = requests_of(MIXED[2:], 8)
    engine.prepare()

    def drop_steps():
        for request in requests:
            engine.submit(request)
        for _ in range(num_steps):
            engine.step()
        assert engine._steps
        assert len(engine.abort_running()) == 8
        assert engine.state().kv_pages_used == 0

    drop_steps()
    engine.sleep(1)
    engine.wake_up()
    assert answers(events_of(engine, requests)) == expected_answers(requests)
    drop_steps()
    folder = other_weights(tmp_path / "other")
    update = load_update([folder], checkpoint.config, LoadOptions())
    engine.update_weights(partial(apply_update, checkpoint, update), 1)
    expected = expected_answers(requests, folder)
    assert expected != expected_answers(requests)
    assert answers(events_of(engine, requests)) == expected
