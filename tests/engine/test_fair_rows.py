"""How tenants share the rows of a forward: by made-up prices, then in the scheduler, then in whole answers."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.decode.modes import Static
from service.engine import Engine, EngineConfig, GenerationRequest
from service.engine.drafting.costs import StepCosts
from service.engine.drafting.planner import DraftPlanner
from service.engine.engine import EngineDeps
from service.engine.prefix_cache import PrefixCache
from service.engine.request import Sharing
from service.engine.scheduler import Scheduler, TenantLoad, fair_rows
from service.model import Checkpoint, parse_config
from tests.engine.helpers import CHEAP_ROWS, DEAR_ROWS, FREE_ROWS, random_requests, request_of
from tests.tiny import tiny_checkpoint, tiny_config

MODEL = parse_config(tiny_config())

#: a forward reads the weights (3), then computes a row in .5
PRICE = {rows: 3 + rows / 2 for rows in range(513)}


def rooms(loads: dict[str, TenantLoad], most: int = 256) -> dict[str, int]:
    return fair_rows(loads, PRICE.__getitem__, most)


class TestFairRows:
    def test_a_forward_is_at_most_as_long_as_the_shares_of_the_lightest_tenant_allow(self) -> None:
        assert rooms({"heavy": TenantLoad(1, 56), "light": TenantLoad(1, 1)}) == {"heavy": 7, "light": 1}
        assert PRICE[7 + 1] == 2 * PRICE[1]

    def test_weights(self) -> None:
        assert rooms({"heavy": TenantLoad(1, 56), "light": TenantLoad(4, 1)}) == {"heavy": 1, "light": 1}
        assert rooms({"heavy": TenantLoad(4, 56), "light": TenantLoad(1, 1)}) == {"heavy": 28, "light": 1}

    @given(st.lists(st.tuples(st.floats(0.1, 10), st.integers(1, 60)), min_size=2, max_size=8))
    def test_every_tenant_gets_on_and_no_time_is_longer_than_the_shares_allow(
        self, tenants: list[tuple[float, int]]
    ) -> None:
        loads = {str(number): TenantLoad(weight, rows) for number, (weight, rows) in enumerate(tenants)}
        shared = rooms(loads) or {tenant: load.rows for tenant, load in loads.items()}
        assert all(1 <= shared[tenant] <= load.rows for tenant, load in loads.items())
        weights = sum(load.weight for load in loads.values())
        longest = min(PRICE[load.rows] * weights / load.weight for load in loads.values())
        assert PRICE[sum(shared.values())] <= longest + (len(loads) - 1) / 2  # a tenant's only row is never left out


def scheduler(costs: StepCosts, *tenants: tuple[str, int], prompt: int = 1) -> Scheduler:
    planner = DraftPlanner(lambda: costs, 256)
    target = Scheduler(PrefixCache(4000), MODEL, EngineConfig(), planner, prompt_rows=16)
    for tenant, count in tenants:
        for number in range(count):
            sharing = Sharing(tenant, cache_salt=tenant)
            request = replace(request_of(f"{tenant}{number}", [1] * prompt, Static()), sharing=sharing)
            target.enqueue(request, 0.0)
    for running_request in target.start_queued():
        running_request.start()
    return target


def served(target: Scheduler) -> list[str]:
    return sorted(running_request.request.request_id for running_request, _ in target.plan())


class TestScheduler:
    def test_the_heavy_tenants_requests_take_turns(self) -> None:
        target = scheduler(CHEAP_ROWS, ("heavy", 20), ("light", 1))
        steps = [served(target) for _ in range(10)]
        assert all("light0" in step for step in steps)
        size = len(steps[0]) - 1
        assert 1 <= size < 10
        turns = [[name for name in step if name != "light0"] for step in steps]
        assert len({name for turn in turns[: -(-20 // size)] for name in turn}) == 20

    @pytest.mark.parametrize("tenants", [[("a", 20)], [("", 20)], [("a", 10), ("b", 10)]])
    def test_one_tenant_and_equal_tenants_have_all_their_rows(self, tenants: list[tuple[str, int]]) -> None:
        assert len(served(scheduler(CHEAP_ROWS, *tenants))) == 20

    def test_nothing_is_left_out_where_rows_are_free(self) -> None:
        assert len(served(scheduler(FREE_ROWS, ("heavy", 20), ("light", 1)))) == 21


@pytest.mark.parametrize("costs", [CHEAP_ROWS, DEAR_ROWS])
def test_answers_are_the_same_beside_other_tenants(costs: StepCosts) -> None:
    checkpoint = tiny_checkpoint(2)
    requests = random_requests(random.Random(11), checkpoint, 12)

    def tokens(tenants: str) -> list[tuple[int, ...]]:
        shared = [
            replace(request, sharing=Sharing(tenants[number % len(tenants)])) for number, request in enumerate(requests)
        ]
        return [done.token_ids for done in engine(checkpoint, costs).generate(shared)]

    assert tokens("aaab") == tokens("abc") == tokens("a")


def engine(checkpoint: Checkpoint, costs: StepCosts) -> Engine:
    return Engine(checkpoint, EngineConfig(max_rows=12), deps=EngineDeps(costs=costs))


def test_a_request_larger_than_its_tenants_share_gets_on() -> None:
    target = engine(tiny_checkpoint(2), DEAR_ROWS)
    many: list[GenerationRequest] = [
        replace(request_of(f"a{n}", [1, 2, 3], tokens=24), sharing=Sharing("a")) for n in range(4)
    ]
    done = target.generate([*many, replace(request_of("b", [5], Static(), tokens=40), sharing=Sharing("b"))])
    assert [len(completion.token_ids) for completion in done] == [24, 24, 24, 24, 40]
