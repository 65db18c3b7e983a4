"""A clock that the test sets."""


class Clock:
    """Seconds; `now` is set by the test."""

    now = 0.0

    def __call__(self) -> float:
        return self.now
