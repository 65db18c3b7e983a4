"""Requests and tokens per minute, with a clock that the test sets."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.admission.keys import ApiKey, Bucket, RateLimits
from service.errors import RateLimited
from tests.clock import Clock


class TestBucket:
    def test_a_refund_does_not_overflow(self, clock: Clock) -> None:
        bucket = Bucket(60, clock)
        bucket.consume(10)
        bucket.consume(-50)
        assert bucket.left == 60

    def test_more_than_fits_needs_a_full_one(self, clock: Clock) -> None:
        bucket = Bucket(60, clock)
        assert bucket.wait_s(1000) == 0
        bucket.consume(1)
        assert bucket.wait_s(1000) == 1

    @given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 200)), max_size=40), st.integers(1, 100))
    def test_no_key_gets_more_than_the_rate_and_a_bucketful(
        self, requests: list[tuple[float, float]], per_minute: int
    ) -> None:
        clock = Clock()
        bucket, taken, began = Bucket(per_minute, clock), 0.0, clock.now
        for gap, amount in requests:
            clock.now += gap
            wanted = min(amount, per_minute)
            if not bucket.wait_s(wanted):
                bucket.consume(wanted)
                taken += wanted
        assert taken <= per_minute * (1 + (clock.now - began) / 60) + 1e-6


class TestLimits:
    def test_retry_after_is_exact(self, clock: Clock) -> None:
        limits, key = RateLimits(clock), ApiKey("a", b"a", requests_per_minute=3)
        for _ in range(3):
            limits.take_request(key)
        clock.now += 5
        with pytest.raises(RateLimited, match=r"key 'a' may have 3 requests a minute; try again in 15\.0 s") as caught:
            limits.take_request(key)
        assert caught.value.retry_after == pytest.approx(15)
        clock.now += math.ceil(caught.value.retry_after or 0)
        limits.take_request(key)

    def test_a_changed_limit_counts_from_now_on(self, clock: Clock) -> None:
        limits = RateLimits(clock)
        limits.take_request(ApiKey("a", b"a", requests_per_minute=1))
        with pytest.raises(RateLimited):
            limits.take_request(ApiKey("a", b"a", requests_per_minute=1))
        for _ in range(2):
            limits.take_request(ApiKey("a", b"a", requests_per_minute=2))
        with pytest.raises(RateLimited):
            limits.take_request(ApiKey("a", b"a", requests_per_minute=2))

    def test_sharers_have_equal_parts_of_a_limit(self, clock: Clock) -> None:
        key, admitted = ApiKey("a", b"a", requests_per_minute=60), 0
        sharers = [RateLimits(clock, 3) for _ in range(3)]
        for second in range(120):
            for limits in sharers:
                for _ in range(5 if second else 60):
                    try:
                        limits.take_request(key)
                    except RateLimited as refused:
                        assert "60 requests a minute" in refused.message  # noqa: PT017
                        continue
                    admitted += 1
            clock.now += 1
        assert admitted == pytest.approx(60 + 119, abs=3)

    def test_tokens_are_corrected(self, clock: Clock) -> None:
        limits, key = RateLimits(clock), ApiKey("a", b"a", tokens_per_minute=100)
        limits.check_tokens(key, 80)
        limits.consume_tokens("a", 80)
        with pytest.raises(RateLimited, match="100 tokens a minute"):
            limits.check_tokens(key, 80)
        limits.consume_tokens("a", 30 - 80)
        limits.check_tokens(key, 70)
        with pytest.raises(RateLimited):
            limits.check_tokens(key, 71)

    def test_keys_do_not_share(self, clock: Clock) -> None:
        limits = RateLimits(clock)
        limits.take_request(ApiKey("a", requests_per_minute=1))
        limits.take_request(ApiKey("b", requests_per_minute=1))
        with pytest.raises(RateLimited):
            limits.take_request(ApiKey("a", requests_per_minute=1))

    def test_a_request_that_is_not_taken_can_be_given_back(self, clock: Clock) -> None:
        limits, key = RateLimits(clock), ApiKey("a", b"a", requests_per_minute=2)
        for _ in range(5):
            limits.take_request(key)
            limits.give_back_request(key)
        for _ in range(2):
            limits.take_request(key)
        with pytest.raises(RateLimited, match="2 requests a minute"):
            limits.take_request(key)
        limits.take_request(ApiKey("b", b"b", requests_per_minute=2))
