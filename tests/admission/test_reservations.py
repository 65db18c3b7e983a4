"""The times at which refused requests may come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.admission.queue_policy import GRACE_S, Reservations


class TestTimes:
    def test_follow_each_other(self) -> None:
        times = Reservations()
        assert [times.book("", name, 2.0, 10.0) for name in (b"a", b"b", b"c")] == [12.0, 14.0, 16.0]
        assert times.book("", b"d", 2.0, 100.0) == 102.0

    def test_of_other_tenants_are_others(self) -> None:
        times = Reservations()
        assert times.book("flood", b"a", 100.0, 0.0) == 100.0
        assert times.book("other", b"b", 1.0, 0.0) == 1.0


class TestComingBack:
    def test_at_its_time_and_once(self) -> None:
        times = Reservations()
        due = times.book("", b"a", 5.0, 0.0)
        assert not times.redeem(b"a", due - 0.1)
        assert not times.redeem(b"b", due)
        assert times.redeem(b"a", due)
        assert not times.redeem(b"a", due)
        assert len(times) == 0

    def test_too_late(self) -> None:
        times = Reservations()
        due = times.book("", b"a", 5.0, 0.0)
        assert not times.redeem(b"a", due + GRACE_S + 0.1)
        assert len(times) == 0

    def test_equal_requests_have_as_many_as_were_refused(self) -> None:
        times = Reservations()
        for _ in range(3):
            times.book("", b"a", 1.0, 0.0)
        assert [times.redeem(b"a", 2.0) for _ in range(3)] == [True, True, False]
        assert times.redeem(b"a", 3.0)


class TestBounds:
    def test_beyond_the_most_there_is_a_time_and_no_promise(self) -> None:
        times = Reservations(most=4)
        dues = [times.book("", bytes([number]), 1.0, 0.0) for number in range(5)]
        assert dues == [1.0, 2.0, 3.0, 3.0, 3.0]
        assert [times.redeem(bytes([number]), 3.0) for number in range(5)] == [True, True, False, False, False]

    @given(
        st.lists(
            st.tuples(st.booleans(), st.integers(0, 5), st.floats(0, 20), st.sampled_from(["x", "y"])), max_size=60
        )
    )
    def test_nothing_is_left_in_the_end(self, script: list[tuple[bool, int, float, str]]) -> None:
        times, now, booked, redeemed = Reservations(most=20), 0.0, 0, 0
        for books, name, amount, tenant in script:
            digest = f"{tenant}{name}".encode()
            if books:
                assert times.book(tenant, digest, amount, now) >= now
                booked += 1
            else:
                now += amount
                redeemed += times.redeem(digest, now)
            assert len(times) <= 20
        assert redeemed <= booked
        times.redeem(b"", now + 10_000)
        assert len(times) == 0
        assert not times._expiries
        assert not times._dues
        assert not times._booked


def test_one_tenant_cannot_take_all_of_them() -> None:
    times = Reservations(most=100)
    for number in range(200):
        times.book("flood", b"f%d" % number, 0.01, 0.0)
    assert len(times) == 50
    due = times.book("other", b"o", 1.0, 0.0)
    assert times.redeem(b"o", due)
    assert times.redeem(b"f0", 0.01)
    times.book("flood", b"again", 0.01, 0.02)
    assert len(times) == 50
