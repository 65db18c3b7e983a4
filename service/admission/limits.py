"""Rate limits of API keys: token buckets for requests and tokens per minute. A bucket holds one minute's amount."""

from __future__ import annotations

from collections.abc import Callable

from service.admission.keys import ApiKey
from service.errors import RateLimited

_MINUTE_S = 60.0


class Bucket:
    """A bucket of `per_minute`, which refills evenly. It may go below 0 when more is used than was estimated."""

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self._most, self._clock = per_minute, clock
        self._left, self._since = per_minute, clock()

    @property
    def left(self) -> float:
        """The amount that may be taken now."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._since) * self._most / _MINUTE_S)
        self._since = now
        return self._left

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` may be taken if nothing else is. An amount above `per_minute` needs a full bucket."""
        missing = min(amount, self._most) - self.left
        return max(0.0, missing * _MINUTE_S / self._most)

    def consume(self, amount: float) -> None:
        """Takes `amount` out. A negative amount is put back."""
        self._left = min(self._most, self.left - amount)


class RateLimits:
    """The buckets of all keys with limits. `sharers`: number of ingresses, which get equal parts of every limit."""

    def __init__(self, clock: Callable[[], float], sharers: int = 1) -> None:
        self._clock, self._sharers = clock, sharers
        self._requests: dict[str, Bucket] = {}
        self._tokens: dict[str, Bucket] = {}

    def check(self, key: ApiKey, tokens: float = 0.0) -> None:
        """RateLimited if the key may not send another request of `tokens` tokens now. 0: the tokens are not known."""
        for what, per_minute, buckets, amount in (
            ("requests", key.requests_per_minute, self._requests, 1.0),
            ("tokens", key.tokens_per_minute, self._tokens, tokens),
        ):
            if per_minute is None or not amount:
                continue
            bucket = self._bucket(buckets, key, per_minute)
            if wait_s := bucket.wait_s(amount):
                raise RateLimited(
                    f"key {key.name!r} may have {per_minute} {what} a minute; try again in {wait_s:.1f} s",
                    retry_after=wait_s,
                )

    def count_request(self, key: ApiKey) -> None:
        """Counts a request of the key."""
        if key.requests_per_minute is not None:
            self._bucket(self._requests, key, key.requests_per_minute).consume(1.0)

    def consume_tokens(self, tenant: str, tokens: float) -> None:
        """Counts tokens of the tenant. A negative number corrects an estimate that was too high."""
        if bucket := self._tokens.get(tenant):
            bucket.consume(tokens)

    def _bucket(self, buckets: dict[str, Bucket], key: ApiKey, per_minute: int) -> Bucket:
        if (bucket := buckets.get(key.name)) is None:
            bucket = buckets[key.name] = Bucket(per_minute / self._sharers, self._clock)
        return bucket
