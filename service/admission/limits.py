"""How many requests and tokens a minute each key may have: token buckets that hold a minute's worth.

Knows no HTTP; the clock is given.
"""

from __future__ import annotations

from collections.abc import Callable

from service.admission.keys import ApiKey
from service.errors import RateLimited

_MINUTE_S = 60.0


class Bucket:
    """What is left of `per_minute`; it fills up evenly. It may be overdrawn by what turns out to be more."""

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self._most, self._clock = per_minute, clock
        self._left, self._since = per_minute, clock()

    @property
    def left(self) -> float:
        """What may be taken now."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._since) * self._most / _MINUTE_S)
        self._since = now
        return self._left

    def wait_s(self, amount: float) -> float:
        """In how many seconds `amount` may be taken if nobody else takes; more than fits needs a full bucket."""
        missing = min(amount, self._most) - self.left
        return max(0.0, missing * _MINUTE_S / self._most)

    def take(self, amount: float) -> None:
        """Takes out so much; a negative amount gives back."""
        self._left = min(self._most, self.left - amount)


class RateLimits:
    """The buckets of all keys that have limits. Each of `sharers` of the same limits has an equal part of them."""

    def __init__(self, clock: Callable[[], float], sharers: int = 1) -> None:
        self._clock, self._sharers = clock, sharers
        self._requests: dict[str, Bucket] = {}
        self._tokens: dict[str, Bucket] = {}

    def check(self, key: ApiKey, tokens: float) -> None:
        """RateLimited when the key may not have another request, of so many tokens, now."""
        for what, per_minute, buckets, amount in (
            ("requests", key.requests_per_minute, self._requests, 1.0),
            ("tokens", key.tokens_per_minute, self._tokens, tokens),
        ):
            if per_minute is None:
                continue
            bucket = buckets.setdefault(key.name, Bucket(per_minute / self._sharers, self._clock))
            if wait_s := bucket.wait_s(amount):
                raise RateLimited(
                    f"key {key.name!r} may have {per_minute} {what} a minute; in {wait_s:.1f} s there is room again",
                    retry_after=wait_s,
                )

    def count_request(self, tenant: str) -> None:
        """A request of the tenant was let in."""
        if bucket := self._requests.get(tenant):
            bucket.take(1.0)

    def take_tokens(self, tenant: str, tokens: float) -> None:
        """So many tokens are the tenant's; a negative number corrects an estimate that was too high."""
        if bucket := self._tokens.get(tenant):
            bucket.take(tokens)
