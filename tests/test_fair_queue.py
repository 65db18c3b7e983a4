"""The order of the queue: shares by weight, priorities, age, and that no request waits for ever."""

from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.fair_queue import FairQueue, Ticket


def filled(*tickets: Ticket) -> FairQueue[str]:
    """A queue of a, b, c … with these tickets."""
    queue: FairQueue[str] = FairQueue()
    for name, ticket in zip("abcdefghijkl", tickets, strict=False):
        queue.push(name, ticket)
    return queue


def drained(queue: FairQueue[str]) -> str:
    return "".join(queue.pop() for _ in range(len(queue)))


tickets = st.builds(
    Ticket,
    arrived=st.floats(0, 100),
    tenant=st.sampled_from(["x", "y", "z"]),
    weight=st.just(1.0),
    priority=st.integers(0, 9),
    cost=st.integers(1, 20),
)


class TestInsideATenant:
    def test_ten_seconds_make_up_for_one_priority(self) -> None:
        assert drained(filled(Ticket(0.0, priority=6), Ticket(9.9, priority=5), Ticket(10.1, priority=5))) == "bac"

    @given(st.lists(st.tuples(st.floats(0, 50), st.integers(0, 9)), max_size=30))
    def test_nothing_overtakes_what_had_aged_past_it(self, arrivals: list[tuple[float, int]]) -> None:
        """The order is by effective priority at any time, first come first served among equals."""
        queue: FairQueue[int] = FairQueue()
        for number, (arrived, priority) in enumerate(arrivals):
            queue.push(number, Ticket(arrived, priority=priority))
        order = [queue.pop() for _ in arrivals]
        at_100 = [arrivals[number][1] - (100 - arrivals[number][0]) / 10 for number in order]
        assert all(earlier <= later + 1e-9 for earlier, later in pairwise(at_100))


class TestBetweenTenants:
    def test_a_flood_does_not_push_another_out(self) -> None:
        queue = filled(*(Ticket(0.0, "flood") for _ in range(10)), Ticket(5.0, "one"))
        assert drained(queue)[:2] == "ak"

    def test_idling_saves_nothing_up(self) -> None:
        queue: FairQueue[str] = FairQueue()
        for number in range(50):
            queue.push("a", Ticket(number, "busy"))
            queue.pop()
        for name in "abcd":
            queue.push(name, Ticket(50.0, "busy"))
            queue.push(name.upper(), Ticket(50.0, "new"))
        assert drained(queue) in {"AaBbCcDd", "aAbBcCdD", "AaBbCcdD", "AaAbBcCdD"}

    @given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.lists(st.integers(1, 8), min_size=1, max_size=9))
    def test_shares_by_weight_while_all_wait(self, weights: list[int], costs: list[int]) -> None:
        """The weighted service of two tenants that always wait never differs by more than one request of each."""
        queue: FairQueue[tuple[int, int]] = FairQueue()
        numbers = {tenant: count() for tenant in range(len(weights))}

        def ask(tenant: int) -> None:
            cost = costs[next(numbers[tenant]) % len(costs)]
            queue.push((tenant, cost), Ticket(0.0, str(tenant), weights[tenant], cost=cost))

        for tenant in range(len(weights)):
            ask(tenant)
        got = [0.0] * len(weights)
        for _ in range(200):
            tenant, cost = queue.pop()
            got[tenant] += cost / weights[tenant]
            ask(tenant)
            for other in range(len(weights)):
                slack = max(costs) / weights[tenant] + max(costs) / weights[other]
                assert abs(got[tenant] - got[other]) <= slack + 1e-6

    @settings(max_examples=15)
    @given(st.lists(tickets, min_size=1, max_size=20), tickets, st.lists(tickets, min_size=200, max_size=200))
    def test_every_request_is_served(self, before: list[Ticket], row: Ticket, later: list[Ticket]) -> None:
        """A request is served within a bounded number of pops, even if another request comes with every pop."""
        queue: FairQueue[str] = FairQueue()
        for ticket in before:
            queue.push("other", ticket)
        queue.push("one", Ticket(100.0, row.tenant, 1.0, row.priority, row.cost))
        for second, ticket in enumerate(later):
            if queue.pop() == "one":
                return
            queue.push("other", Ticket(100.0 + second, ticket.tenant, 1.0, ticket.priority, ticket.cost))
        pytest.fail("it still waits")


class TestQueue:
    def test_an_empty_one(self) -> None:
        queue: FairQueue[str] = FairQueue()
        assert (len(queue), queue.peek(), list(queue)) == (0, None, [])
        with pytest.raises(IndexError):
            queue.pop()

    @given(st.lists(st.one_of(tickets, st.none()), max_size=40), st.data())
    def test_everything_comes_out_once(self, script: list[Ticket | None], data: st.DataObject) -> None:
        """Pushes, pops and removals in any order; None takes out whatever the data says."""
        queue: FairQueue[object] = FairQueue()
        inside: list[object] = []
        for ticket in script:
            if ticket is not None:
                inside.append(object())
                queue.push(inside[-1], ticket)
            elif inside and data.draw(st.booleans()):
                gone = data.draw(st.sampled_from(inside))
                assert queue.remove(gone)
                assert not queue.remove(gone)
                inside.remove(gone)
            elif inside:
                first = queue.peek()
                assert queue.pop() is first
                inside.remove(first)
            assert len(queue) == len(inside)
            assert set(map(id, queue)) == set(map(id, inside))

    def test_removing_costs_nothing(self) -> None:
        queue: FairQueue[str] = FairQueue()
        queue.push("gone", Ticket(0.0, "x", cost=1000))
        assert queue.remove("gone")
        queue.push("a", Ticket(0.0, "x"))
        queue.push("b", Ticket(0.0, "y"))
        assert drained(queue) == "ab"

    def test_tenants_that_left_are_forgotten(self) -> None:
        queue: FairQueue[str] = FairQueue()
        for number in range(100):
            queue.push("a", Ticket(number, str(number)))
            queue.pop()
        assert len(queue._tenants) <= 1


class TestAhead:
    """What would be served before a newcomer."""

    def test_of_one_tenant(self) -> None:
        queue = filled(Ticket(0.0, cost=3), Ticket(0.0, priority=9, cost=10))
        assert queue.ahead(Ticket(1.0)) == 3
        assert queue.ahead(Ticket(1.0, priority=0)) == 0
        assert queue.ahead(Ticket(41.0)) == 13

    def test_of_another_tenant_is_only_what_comes_before_its_turn(self) -> None:
        queue = filled(*(Ticket(0.0, "flood", cost=10) for _ in range(9)))
        assert queue.ahead(Ticket(1.0, "flood")) == 90
        assert queue.ahead(Ticket(1.0, "one")) == 0
        queue.push("one", Ticket(1.0, "one", cost=5))
        assert queue.ahead(Ticket(1.0, "one")) == 5 + 5
        assert queue.waiting("flood") == 9
        assert queue.waiting("nobody") == 0

    def test_shares(self) -> None:
        queue = filled(Ticket(0.0, "x", weight=3.0), Ticket(0.0, "y", weight=1.0))
        assert queue.share(Ticket(0.0, "x", weight=3.0)) == 0.75
        assert queue.share(Ticket(0.0, "z", weight=4.0)) == 0.5
        assert FairQueue[str]().share(Ticket(0.0)) == 1.0

    @given(st.lists(tickets, max_size=20), tickets)
    def test_is_close_to_what_is_served_before_it(self, before: list[Ticket], row: Ticket) -> None:
        queue: FairQueue[Ticket] = FairQueue()
        for ticket in before:
            queue.push(ticket, ticket)
        foreseen = queue.ahead(row)
        queue.push(row, row)
        served = 0.0
        while (popped := queue.pop()) is not row:
            served += popped.cost
        assert abs(served - foreseen) <= 2 * 20  # a request of each other tenant
