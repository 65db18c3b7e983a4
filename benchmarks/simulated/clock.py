"""A clock of one host and one device: the host works and waits, the device computes one forward after the other."""

import random
from math import ceil

#: The ticks of a second. Seconds are multiples of a power of two, so their differences are exact, and equal work takes
#: equal time whenever it is done.
_TICKS = 2**30


class SimulatedClock:
    """Calling it gives the host's time in seconds. `noise`: the share by which the device's times vary, uniformly.

    Equal seeds give equal times.
    """

    def __init__(self, noise: float = 0.0, seed: int = 0) -> None:
        self._now = self._free = 0  # ticks: the host's time, and that at which the device has computed everything
        self._noise, self._random = noise, random.Random(seed)

    def __call__(self) -> float:
        return self._now / _TICKS

    def work(self, milliseconds: float) -> None:
        """The host works."""
        self._now += round(milliseconds * 1e-3 * _TICKS)

    def compute(self, milliseconds: float) -> int:
        """Gives work to the device. -> when the device has done it, for `wait`."""
        factor = 1.0 + self._noise * (2.0 * self._random.random() - 1.0)
        self._free = max(self._now, self._free) + round(milliseconds * factor * 1e-3 * _TICKS)
        return self._free

    def wait(self, end: int) -> None:
        """The host waits for the device, unless it is done."""
        self._now = max(self._now, end)

    def sleep_until(self, seconds: float) -> None:
        self._now = max(self._now, ceil(seconds * _TICKS))
