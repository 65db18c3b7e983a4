"""Places are given in order, are freed by every kind of end, and are never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.admission.slots import Slots, Waiter
from service.admission.throughput import Throughput
from service.errors import NotReady
from service.fair_queue import FairQueue, Ticket
from tests.admission.virtual import now, run


class Hall:
    """Slots, and requests that report when they got a slot."""

    def __init__(self, slots: int, shared: bool = False) -> None:
        self.queue: FairQueue[Waiter] = FairQueue()
        self.gate = Slots(self.queue, Throughput(asyncio.get_running_loop().time), shared)
        self.gate.resize(slots)
        self.came: list[str] = []
        self.inside = self.most = 0

    def visit(self, name: str, stays: float = 1.0, fails: bool = False, **ticket: object) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._visit(name, stays, fails, Ticket(now(), **ticket)))  # type: ignore[arg-type]

    async def _visit(self, name: str, stays: float, fails: bool, ticket: Ticket, timeout_s: float = 1e9) -> None:
        await self.gate.enter(ticket, timeout_s)
        try:
            self.came.append(name)
            self.inside += 1
            self.most = max(self.most, self.inside)
            await asyncio.sleep(stays)
            if fails:
                raise ValueError(name)
        finally:
            self.inside -= 1
            self.gate.leave(ticket.tenant)

    def is_empty(self) -> bool:
        return self.gate.used == self.inside == len(self.queue) == 0


def in_hall(slots: int, script: Callable[[Hall], object], shared: bool = False) -> Hall:
    async def main() -> Hall:
        hall = Hall(slots, shared)
        result = script(hall)
        if asyncio.iscoroutine(result):
            await result
        return hall

    return run(main())


class TestOrder:
    def test_no_more_than_slots(self) -> None:
        async def script(hall: Hall) -> None:
            await asyncio.gather(*(hall.visit(str(number)) for number in range(10)))
            assert now() == 4.0

        hall = in_hall(3, script)
        assert hall.most == 3
        assert hall.came == [str(number) for number in range(10)]
        assert hall.is_empty()

    def test_by_priority(self) -> None:
        async def script(hall: Hall) -> None:
            tasks = [hall.visit(name, priority=priority) for name, priority in (("a", 9), ("b", 5), ("c", 0))]
            await asyncio.gather(*tasks)

        assert in_hall(1, script).came == ["a", "c", "b"]

    def test_those_who_wait_are_not_overtaken_by_who_just_comes(self) -> None:
        async def script(hall: Hall) -> None:
            first, second = hall.visit("first"), hall.visit("second")
            await first
            await asyncio.gather(second, hall.visit("third"))

        assert in_hall(1, script).came == ["first", "second", "third"]

    def test_without_slots_everybody_waits_until_there_are_some(self) -> None:
        async def script(hall: Hall) -> None:
            tasks = [hall.visit(str(number)) for number in range(4)]
            await asyncio.sleep(10)
            assert hall.came == []
            hall.gate.resize(2)
            await asyncio.sleep(0.5)
            assert len(hall.came) == 2
            hall.gate.resize(4)
            await asyncio.gather(*tasks)
            assert now() == 11.5

        assert in_hall(0, script).is_empty()

    def test_fewer_slots_than_are_taken(self) -> None:
        async def script(hall: Hall) -> None:
            tasks = [hall.visit(str(number)) for number in range(6)]
            await asyncio.sleep(0.5)
            hall.gate.resize(1)
            await asyncio.gather(*tasks)
            assert now() == 1 + 3

        assert in_hall(3, script).is_empty()


class TestLeaving:
    async def stand(self, hall: Hall) -> tuple[asyncio.Task[None], ...]:
        tasks = tuple(hall.visit(name) for name in ("inside", "waits", "last"))
        await asyncio.sleep(0.5)
        return tasks

    def test_while_waiting(self) -> None:
        async def script(hall: Hall) -> None:
            _, waits, last = await self.stand(hall)
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
            assert len(hall.queue) == 1
            await last
            assert now() == 2.0

        hall = in_hall(1, script)
        assert hall.came == ["inside", "last"]
        assert hall.is_empty()

    def test_in_the_moment_a_slot_is_given(self) -> None:
        async def script(hall: Hall) -> None:
            inside, waits, last = await self.stand(hall)
            inside.cancel()
            await asyncio.sleep(0)  # it leaves, and the slot is another's, who has not heard of it yet
            waits.cancel()
            await last
            assert now() == 1.5

        hall = in_hall(1, script)
        assert hall.came == ["inside", "last"]
        assert hall.is_empty()

    def test_by_an_error(self) -> None:
        async def script(hall: Hall) -> None:
            await asyncio.gather(*(hall.visit(str(n), fails=True) for n in range(3)), return_exceptions=True)

        hall = in_hall(1, script)
        assert hall.came == ["0", "1", "2"]
        assert hall.is_empty()

    def test_too_late(self) -> None:
        async def script(hall: Hall) -> None:
            inside = hall.visit("inside", 5.0)
            await asyncio.sleep(0)
            with pytest.raises(TimeoutError):
                await hall._visit("late", 1.0, False, Ticket(now()), timeout_s=2.0)
            assert now() == 2.0
            assert len(hall.queue) == 0
            await inside

        assert in_hall(1, script).is_empty()

    @pytest.mark.parametrize("timeout_s", [0.0, -5.0])
    def test_a_free_slot_needs_no_time(self, timeout_s: float) -> None:
        assert in_hall(1, lambda hall: hall._visit("a", 1.0, False, Ticket(now()), timeout_s)).came == ["a"]


class TestTurnedAway:
    def test_everybody_gets_an_error_of_his_own(self) -> None:
        """An error that several tasks raise at once would get the tracebacks of all of them."""
        told = NotReady("given up", param="model", retry_after=5.0)

        async def script(hall: Hall) -> None:
            tasks = [hall.visit(str(number)) for number in range(3)]
            await asyncio.sleep(1)
            hall.gate.reject_all(told)
            errors = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(error) for error in errors] == [NotReady] * 3
            assert {(error.message, error.param, error.retry_after) for error in errors} == {("given up", "model", 5.0)}
            assert len({id(error) for error in (told, *errors)}) == 4
            assert told.__traceback__ is None

        assert in_hall(0, script).is_empty()

    def test_only_where_there_are_no_slots(self) -> None:
        async def script(hall: Hall) -> None:
            tasks = [hall.visit(str(number)) for number in range(2)]
            await asyncio.sleep(0.5)
            hall.gate.reject_all(NotReady("given up"))
            await asyncio.gather(*tasks)

        assert in_hall(1, script).came == ["0", "1"]


class TestShared:
    """80 slots at replicas that decode 64 requests at once."""

    @pytest.mark.parametrize(
        ("weights", "held"),
        [((1.0,), (56,)), ((1.0, 1.0), (30, 30)), ((1.0,) * 5, (12,) * 5), ((1000.0, 1.0), (59, 1))],
    )
    def test_floods_leave_room_for_another_tenant(self, weights: tuple[float, ...], held: tuple[int, ...]) -> None:
        async def script(hall: Hall) -> None:
            floods = [
                hall.visit(f"t{tenant}", 1000.0, tenant=f"t{tenant}", weight=weight)
                for _ in range(128)
                for tenant, weight in enumerate(weights)
            ]
            await asyncio.sleep(1)
            shares = [hall.came.count(f"t{tenant}") for tenant in range(len(weights))]
            assert shares == pytest.approx(held, abs=1)
            assert sum(shares) < 64
            assert hall.gate.used == 80  # nothing is left for those who wait
            for number in range(3):
                await hall.visit(f"other {number}", tenant="other")
            assert now() == 4.0
            for flood in floods:
                flood.cancel()
            await asyncio.gather(*floods, return_exceptions=True)

        assert in_hall(80, script, shared=True).is_empty()

    @pytest.mark.parametrize(("slots", "held"), [(1, 1), (2, 1), (5, 3), (10, 7)])
    def test_few_slots(self, slots: int, held: int) -> None:
        async def script(hall: Hall) -> None:
            await asyncio.gather(*(hall.visit("", tenant="flood") for _ in range(12)))

        assert in_hall(slots, script, shared=True).most == held

    def test_a_slot_that_another_tenant_leaves_is_for_who_waits(self) -> None:
        async def script(hall: Hall) -> None:
            other = [hall.visit("other", tenant="other") for _ in range(20)]
            flood = [hall.visit("flood", 5.0, tenant="flood") for _ in range(60)]
            await asyncio.gather(*other)
            await asyncio.sleep(1)
            assert hall.inside == 56
            await asyncio.gather(*flood)

        assert in_hall(80, script, shared=True).is_empty()


visitors = st.lists(
    st.tuples(
        st.floats(0, 20),  # comes
        st.floats(0, 5),  # stays
        st.booleans(),  # fails
        st.one_of(st.none(), st.floats(0, 8)),  # is cancelled so much later
        st.floats(0, 6),  # waits at most
        st.integers(0, 9),
        st.sampled_from("xyz"),
    ),
    max_size=25,
)


@settings(max_examples=80, deadline=None)
@given(visitors, st.integers(1, 4), st.lists(st.tuples(st.floats(0, 20), st.integers(0, 4)), max_size=4), st.booleans())
def test_no_slot_is_lost_or_doubled(plan: list, slots: int, resizes: list, shared: bool) -> None:
    """Requests come, leave, fail, time out and are cancelled at any moment. In the end all slots are free."""

    async def main() -> None:
        hall, loop = Hall(slots, shared), asyncio.get_running_loop()
        tasks = []

        async def later(comes, stays, fails, cancelled, timeout_s, priority, tenant) -> None:
            await asyncio.sleep(comes)
            ticket = Ticket(now(), tenant, 1.0, priority)
            task = asyncio.ensure_future(hall._visit("", stays, fails, ticket, timeout_s))
            if cancelled is not None:
                loop.call_later(cancelled, task.cancel)
            await asyncio.gather(task, return_exceptions=True)

        for at, count in resizes:
            loop.call_later(at, hall.gate.resize, count)
        tasks = [asyncio.ensure_future(later(*one)) for one in plan]
        await asyncio.gather(*tasks)
        await asyncio.sleep(30)
        assert hall.is_empty()
        assert hall.most <= max([slots, *(count for _, count in resizes)])

    run(main())
