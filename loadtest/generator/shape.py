"""Levels as a locust shape: the users of a closed loop, or the sources of an open loop."""

from __future__ import annotations

import time
from collections.abc import Callable

from locust import LoadTestShape

from loadtest.generator.options import RunOptions

Tick = tuple[int, float]

#: seconds for requests in progress to finish at the end of a run; without them the slowest would not be counted
FINISH_S = 30.0
_AT_ONCE = 100.0  # locust warns above


class Levels(LoadTestShape):
    """Follows the levels of a plan. `changed` gets each new stage with its level."""

    abstract = True  # locust would make one without arguments
    use_common_options = True

    def __init__(
        self, options: RunOptions, sources: Callable[[], int], changed: Callable[[float, int, float], None]
    ) -> None:
        super().__init__()
        self._options = options
        self._sources = sources
        self._changed = changed
        self._stage = -1

    def reset_time(self) -> None:
        """Begins a new run."""
        super().reset_time()
        self._stage = -1

    def tick(self) -> Tick | None:
        """The number of users, and how many to start per second. None ends the run."""
        at = self.get_run_time()
        if at >= self._options.profile.seconds:
            return self._finish(at - self._options.profile.seconds)
        profile = self._options.profile
        stage, level = profile.stage(at), profile.level(at)
        if stage is not None and stage != self._stage:
            self._stage = stage
            self._changed(time.perf_counter(), stage, level)
        return (max(1, round(level)) if self._options.loop == "closed" else self._sources()), _AT_ONCE

    def _finish(self, since: float) -> Tick | None:
        """Sends nothing new, and ends when all requests are answered.

        If the master ended sooner, the rows of the last requests would be lost.
        """
        if since > FINISH_S or not self.get_current_user_count():
            return None
        return (0 if self._options.loop == "closed" else self._sources()), _AT_ONCE
