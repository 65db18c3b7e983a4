"""Slots are given in order, are freed by every kind of end, and are never lost."""

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


class Requests:
    """Slots, and requests that report when they got a slot."""

    def __init__(self, slots: int, shared: bool = False) -> None:
        self.queue: FairQueue[Waiter] = FairQueue()
        self.slots = Slots(self.queue, Throughput(asyncio.get_running_loop().time), shared)
        self.slots.resize(slots)
        self.started: list[str] = []
        self.running = self.max_running = 0

    def start(self, name: str, seconds: float = 1.0, fails: bool = False, **ticket: object) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.run(name, seconds, fails, Ticket(now(), **ticket)))  # type: ignore[arg-type]

    async def run(self, name: str, seconds: float, fails: bool, ticket: Ticket, timeout_s: float = 1e9) -> None:
        await self.slots.enter(ticket, timeout_s)
        try:
            self.started.append(name)
            self.running += 1
            self.max_running = max(self.max_running, self.running)
            await asyncio.sleep(seconds)
            if fails:
                raise ValueError(name)
        finally:
            self.running -= 1
            self.slots.leave(ticket.tenant)

    def are_done(self) -> bool:
        return self.slots.used == self.running == len(self.queue) == 0


def run_requests(slots: int, script: Callable[[Requests], object], shared: bool = False) -> Requests:
    async def main() -> Requests:
        requests = Requests(slots, shared)
        result = script(requests)
        if asyncio.iscoroutine(result):
            await result
        return requests

    return run(main())


class TestOrder:
    def test_no_more_than_slots(self) -> None:
        async def script(requests: Requests) -> None:
            await asyncio.gather(*(requests.start(str(number)) for number in range(10)))
            assert now() == 4.0

        requests = run_requests(3, script)
        assert requests.max_running == 3
        assert requests.started == [str(number) for number in range(10)]
        assert requests.are_done()

    def test_without_slots_all_requests_wait(self) -> None:
        async def script(requests: Requests) -> None:
            tasks = [requests.start(str(number)) for number in range(4)]
            await asyncio.sleep(10)
            assert requests.started == []
            requests.slots.resize(2)
            await asyncio.sleep(0.5)
            assert len(requests.started) == 2
            requests.slots.resize(4)
            await asyncio.gather(*tasks)
            assert now() == 11.5

        assert run_requests(0, script).are_done()


class TestLeaving:
    def test_in_the_moment_a_slot_is_given(self) -> None:
        async def script(requests: Requests) -> None:
            running, waits, last = (requests.start(name) for name in ("running", "waits", "last"))
            await asyncio.sleep(0.5)
            running.cancel()
            await asyncio.sleep(0)  # its slot is given to the next request, whose task has not run yet
            waits.cancel()
            await last
            assert now() == 1.5

        requests = run_requests(1, script)
        assert requests.started == ["running", "last"]
        assert requests.are_done()

    @pytest.mark.parametrize("timeout_s", [0.0, -5.0])
    def test_a_free_slot_needs_no_time(self, timeout_s: float) -> None:
        requests = run_requests(1, lambda requests: requests.run("a", 1.0, False, Ticket(now()), timeout_s))
        assert requests.started == ["a"]


class TestRejectAll:
    def test_each_request_gets_its_own_copy_of_the_error(self) -> None:
        """An error that several tasks raise at once would get the tracebacks of all of them."""
        error = NotReady("given up", param="model", retry_after=5.0)

        async def script(requests: Requests) -> None:
            tasks = [requests.start(str(number)) for number in range(3)]
            await asyncio.sleep(1)
            requests.slots.reject_waiting(error)
            errors = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(error) for error in errors] == [NotReady] * 3
            assert {(error.message, error.param, error.retry_after) for error in errors} == {("given up", "model", 5.0)}
            assert len({id(error) for error in (error, *errors)}) == 4
            assert error.__traceback__ is None

        assert run_requests(0, script).are_done()

    def test_only_where_there_are_no_slots(self) -> None:
        async def script(requests: Requests) -> None:
            tasks = [requests.start(str(number)) for number in range(2)]
            await asyncio.sleep(0.5)
            requests.slots.reject_waiting(NotReady("given up"))
            await asyncio.gather(*tasks)

        assert run_requests(1, script).started == ["0", "1"]


class TestShared:
    """80 slots at replicas that decode 64 requests at once."""

    @pytest.mark.parametrize(
        ("weights", "expected"),
        [((1.0,), (56,)), ((1.0, 1.0), (30, 30)), ((1.0,) * 5, (12,) * 5), ((1000.0, 1.0), (59, 1))],
    )
    def test_floods_leave_room_for_another_tenant(self, weights: tuple[float, ...], expected: tuple[int, ...]) -> None:
        async def script(requests: Requests) -> None:
            floods = [
                requests.start(f"t{tenant}", 1000.0, tenant=f"t{tenant}", weight=weight)
                for _ in range(128)
                for tenant, weight in enumerate(weights)
            ]
            await asyncio.sleep(1)
            shares = [requests.started.count(f"t{tenant}") for tenant in range(len(weights))]
            assert shares == pytest.approx(expected, abs=1)
            assert sum(shares) < 64
            assert requests.slots.used == 80  # no slot is left for waiting requests
            for number in range(3):
                await requests.start(f"other {number}", tenant="other")
            assert now() == 4.0
            for flood in floods:
                flood.cancel()
            await asyncio.gather(*floods, return_exceptions=True)

        assert run_requests(80, script, shared=True).are_done()

    def test_a_slot_that_another_tenant_leaves_goes_to_the_queue(self) -> None:
        async def script(requests: Requests) -> None:
            other = [requests.start("other", tenant="other") for _ in range(20)]
            flood = [requests.start("flood", 5.0, tenant="flood") for _ in range(60)]
            await asyncio.gather(*other)
            await asyncio.sleep(1)
            assert requests.running == 56
            await asyncio.gather(*flood)

        assert run_requests(80, script, shared=True).are_done()


scripts = st.lists(
    st.fixed_dictionaries(
        {
            "start_at": st.floats(0, 20),
            "seconds": st.floats(0, 5),
            "fails": st.booleans(),
            "cancelled_after": st.one_of(st.none(), st.floats(0, 8)),
            "timeout_s": st.floats(0, 6),
            "priority": st.integers(0, 9),
            "tenant": st.sampled_from("xyz"),
        }
    ),
    max_size=25,
)


@settings(max_examples=80, deadline=None)
@given(scripts, st.integers(1, 4), st.lists(st.tuples(st.floats(0, 20), st.integers(0, 4)), max_size=4), st.booleans())
def test_no_slot_is_lost_or_doubled(plan: list, slots: int, resizes: list, shared: bool) -> None:
    """Requests come, leave, fail, time out and are cancelled at any moment. In the end all slots are free."""

    async def main() -> None:
        requests, loop = Requests(slots, shared), asyncio.get_running_loop()
        tasks = []

        async def later(start_at, seconds, fails, cancelled_after, timeout_s, priority, tenant) -> None:
            await asyncio.sleep(start_at)
            ticket = Ticket(now(), tenant, 1.0, priority)
            task = asyncio.ensure_future(requests.run("", seconds, fails, ticket, timeout_s))
            if cancelled_after is not None:
                loop.call_later(cancelled_after, task.cancel)
            await asyncio.gather(task, return_exceptions=True)

        for at, count in resizes:
            loop.call_later(at, requests.slots.resize, count)
        tasks = [asyncio.ensure_future(later(**row)) for row in plan]
        await asyncio.gather(*tasks)
        await asyncio.sleep(30)
        assert requests.are_done()
        assert requests.max_running <= max([slots, *(count for _, count in resizes)])

    run(main())
