"""The load generator's options, beside locust's own, and what they mean.

They stand on locust's command line and in the form of its web page. `Plan` is what users and shape are told.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loadtest.arrivals import Arrival, Profile, trace
from loadtest.workload import Lengths, Workload, heldout_prompts, plans, read_prompts

LOOPS = ("closed", "open", "trace")


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options to locust's."""
    group = parser.add_argument_group("mrp-serve", "what is asked, and when")
    group.add_argument("--modes", default="default", help="MODE[@KNOB=VALUE[+…]][:WEIGHT],… (default: the server's)")
    group.add_argument("--lengths", default="uniform:16-64", help="fixed:N, uniform:FROM-TO or lognormal:MEDIAN-SIGMA")
    group.add_argument("--exact", action="store_true", help="answers do not stop before that length")
    group.add_argument("--prompts", default="", help="JSON lines with messages or prompt (default: held-out problems)")
    group.add_argument("--temperature", type=float, default=0.0)
    group.add_argument("--workload-seed", type=int, default=17)
    group.add_argument("--loop", choices=LOOPS, default="closed", help="users, arrivals at a rate, or recorded ones")
    group.add_argument("--levels", default="", help="SECONDS:LEVEL or SECONDS:FROM-TO,…; users, or requests a second")
    group.add_argument("--trace", default="", help="JSON lines of arrival times in seconds, for --loop trace")
    group.add_argument("--think-s", type=float, default=0.0, help="mean pause of a user of the closed loop")
    group.add_argument("--timeout-s", type=float, default=120.0, help="longest silence of the service")
    group.add_argument("--model", default="", help="for OpenAI's routes (default: the first of /v1/models)")
    group.add_argument("--api-key", default="", help="sent as bearer token")
    group.add_argument("--rows", default="", help="file for a JSON line for each request")
    group.add_argument("--sources", type=int, default=0, help=argparse.SUPPRESS)


@dataclass(frozen=True)
class Plan:
    """What the options say."""

    workload: Workload
    loop: Literal["closed", "open", "trace"]
    profile: Profile | None
    trace: Path | None
    think_s: float

    @classmethod
    def of(cls, options: argparse.Namespace) -> Plan:
        """Of parsed options; ValueError says which one is wrong."""
        prompts = read_prompts(Path(options.prompts)) if options.prompts else heldout_prompts()
        workload = Workload(
            prompts,
            plans(options.modes),
            Lengths.parse(options.lengths),
            options.temperature,
            options.exact,
            options.workload_seed,
        )
        if options.loop == "open" and not options.levels:
            raise ValueError("--loop open without --levels; allowed: --levels SECONDS:RATE,…")
        if options.loop == "trace" and not options.trace:
            raise ValueError("--loop trace without --trace; allowed: --trace FILE")
        profile = Profile.parse(options.levels) if options.levels else None
        return cls(workload, options.loop, profile, Path(options.trace) if options.trace else None, options.think_s)

    def recorded(self, index: int, count: int) -> list[Arrival]:
        """The arrivals of one of `count` sources that share a trace."""
        if self.trace is None:
            raise ValueError(f"a loop of kind {self.loop} has no trace")
        return trace(self.trace, index, count)

    @property
    def seconds(self) -> float | None:
        """How long arrivals or levels go on; None: until locust is told to stop."""
        if self.loop == "trace":
            return self.recorded(0, 1)[-1].at
        return self.profile.seconds if self.profile else None
