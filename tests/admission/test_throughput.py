"""The rate at full load, and the decoded part of the requested blocks, with a clock that the test sets."""

import pytest

from service.admission.throughput import Throughput
from tests.clock import Clock


def passes(meter: Throughput, clock: Clock, seconds: float, blocks_a_second: float, every_s: float = 0.1) -> None:
    """Time with four of four slots taken. Each tells every `every_s` seconds what it has decoded."""
    meter.occupied(4, 4)
    since = [meter.moment()] * 4
    for _ in range(round(seconds / every_s)):
        clock.now += every_s
        since = [meter.decoded_since(start, blocks_a_second / 4 * every_s) for start in since]


class TestRate:
    def test_is_not_known_before_there_was_load(self, clock: Clock) -> None:
        meter = Throughput(clock)
        assert meter.rate is None
        meter.occupied(4, 4)
        start = meter.moment()
        clock.now += 60
        assert meter.rate is None  # nothing was heard
        meter.decoded_since(start, 60)
        assert meter.rate == pytest.approx(4.0)

    def test_is_what_is_decoded_while_all_slots_are_taken(self, clock: Clock) -> None:
        meter = Throughput(clock)
        passes(meter, clock, 100, 8.0)
        assert meter.rate == pytest.approx(8.0)
        meter.occupied(1, 4)
        start = meter.moment()
        clock.now += 1000
        meter.decoded_since(start, 2)  # one request alone says nothing of the most there could be
        assert meter.rate == pytest.approx(8.0)

    @pytest.mark.parametrize("every_s", [0.1, 1.0, 12.0, 50.0])
    def test_is_the_same_however_often_answers_tell(self, clock: Clock, every_s: float) -> None:
        meter = Throughput(clock)
        passes(meter, clock, 100, 8.0, every_s)
        assert meter.rate == pytest.approx(8.0)

    def test_follows_the_slots(self, clock: Clock) -> None:
        meter = Throughput(clock)
        passes(meter, clock, 50, 8.0)
        meter.occupied(4, 2)
        assert meter.rate == pytest.approx(4.0)
        meter.occupied(4, 0)
        assert meter.rate is None
        assert meter.rate_per_slot == pytest.approx(2.0)

    def test_of_all_slots_where_a_tenant_may_not_take_the_last(self, clock: Clock) -> None:
        meter = Throughput(clock)
        meter.occupied(8, 9, has_waiting=True)
        start = [meter.moment()] * 8
        clock.now += 20
        meter.occupied(2, 9)
        clock.now += 20
        for moment in start:
            meter.decoded_since(moment, 2 * 40)
        assert meter.rate == pytest.approx(16.0)


class TestWholeAnswers:
    """Answers that are counted when they are complete."""

    @pytest.mark.parametrize(("before", "full", "after"), [(0, 10, 0), (5, 10, 0), (0, 10, 30), (4, 40, 4)])
    def test_only_blocks_decoded_at_full_load_count(
        self, clock: Clock, before: float, full: float, after: float
    ) -> None:
        """Four slots at 2 blocks a second each, all in use for a part of the time only."""
        meter = Throughput(clock)
        meter.occupied(3, 4)
        first = [meter.moment() for _ in range(3)]
        clock.now += before
        meter.occupied(4, 4)
        last = meter.moment()
        clock.now += full
        meter.decoded_since(last, 2 * full)
        meter.occupied(3, 4)
        clock.now += after
        for start in first:
            meter.decoded_since(start, 2 * (clock.now - start.at))
        assert meter.rate_per_slot == pytest.approx(2.0, rel=0.01)


class TestRatio:
    def test_of_sums(self, clock: Clock) -> None:
        meter = Throughput(clock)
        for _ in range(50):
            meter.answered(100, 10)
            meter.answered(10, 10)
        assert meter.ratio == pytest.approx(20 / 110, rel=0.01)

    def test_is_at_most_one(self, clock: Clock) -> None:
        meter = Throughput(clock)
        meter.answered(4, 5)
        assert meter.ratio == 1.0
