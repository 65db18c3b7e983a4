"""Plans beside each other at several loads, on a tiny checkpoint."""

from dataclasses import replace

from benchmarks.throughput import PlanAtLoad, Rounds, Sample, Workload, compare_at_loads, plans_at_load
from service.decode.modes import Speculative, Static
from service.engine import EngineConfig
from tests.tiny import tiny_checkpoint


def test_every_plan_has_the_same_requests_at_every_load():
    prompts = [(1, 2, 3, 4), (6,) * 8]
    plans = [Static(), Speculative("auto"), Speculative(0, 2)]
    workload, base = Workload(prompts, fewest=3, new_tokens=16), EngineConfig(max_rows=8)
    found = list(compare_at_loads(tiny_checkpoint(0), workload, plans, Rounds((1, 3), 2), base))
    assert [[row.concurrency for row in rows] for rows in found] == [[1, 1, 1], [3, 3, 3]]
    for static, *others in found:
        assert len(static.samples) == 2
        assert static.times_faster(static) == (1.0, 1.0)
        for row in others:
            assert [sample.tokens for sample in row.samples] == [sample.tokens for sample in static.samples]
            assert row.tokens_per_forward >= static.tokens_per_forward == 1.0


def test_a_place_is_asked_alike_whatever_the_plan():
    workload, stops = Workload([(1, 2), (3,)], temperature=0.7), frozenset({9})
    static, auto = (workload.requests(mode, range(3, 6), stops) for mode in (Static(), Speculative("auto")))
    assert [one.prompt_token_ids for one in static] == [(3,), (1, 2), (3,)]
    assert {one.sampling.temperature for one in static} == {0.7}
    assert len({one.sampling.seed for one in static}) == 3
    assert [replace(one, mode=Static()) for one in auto] == static


def test_ratios_are_of_the_same_round():
    static, fast = PlanAtLoad(Static(), 1), PlanAtLoad(Speculative(), 1)
    for slowed in (1.0, 10.0, 3.0):
        static.samples.append(Sample(100, 100, 2.0 * slowed, 6.0 * slowed))
        fast.samples.append(Sample(100, 50, 1.0 * slowed, 2.0 * slowed))
    assert fast.times_faster(static) == (2.0, 3.0)
    assert fast.tokens_per_forward == 2


def test_auto_stands_beside_static_and_drafts_of_fixed_sizes():
    with_mrp, without = plans_at_load(True), plans_at_load(False)
    assert with_mrp[:2] == without[:2] == [Static(), Speculative("auto")]
    assert not any(plan.needs_mrp for plan in without)
    assert any(plan.needs_mrp for plan in with_mrp)
