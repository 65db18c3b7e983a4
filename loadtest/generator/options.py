"""The load generator's own options in addition to locust's.

They are on locust's command line and in the form of its web page. Users and shape get them as `RunOptions`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loadtest.generator.arrivals import Profile
from loadtest.generator.workload import Lengths, Workload, heldout_prompts, plans, read_prompts


def add(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Adds the options to locust's, and returns them by name. Locust's page would not show a group of options."""
    make = parser.add_argument
    actions = [
        make("--modes", default="default", help="MODE or QUALITY[@KNOB=VALUE[+…]][:WEIGHT],… (default: the server's)"),
        make("--lengths", default="uniform:16-64", help="fixed:N, uniform:FROM-TO or lognormal:MEDIAN-SIGMA"),
        make("--exact", action="store_true", help="answers do not stop before that length"),
        make("--prompts", default="", help="JSON lines with messages or prompt (default: held-out problems)"),
        make("--temperature", type=float, default=0.0),
        make("--workload-seed", type=int, default=17),
        make("--loop", choices=("closed", "open"), default="closed", help="users, or arrivals at a rate"),
        make("--levels", default="", help="SECONDS:LEVEL or SECONDS:FROM-TO,…; users, or requests a second"),
        make("--think-s", type=float, default=0.0, help="mean pause of a user of the closed loop"),
        make("--timeout-s", type=float, default=120.0, help="longest silence of the service"),
        make("--model", default="", help="for OpenAI's routes (default: the first of /v1/models)"),
        make("--api-key", default="", help="sent as bearer token"),
        make("--rows", default="", help="file for a JSON line for each request"),
        make("--sources", type=int, default=0, help=argparse.SUPPRESS),
    ]
    return {action.dest: action for action in actions}


@dataclass(frozen=True)
class RunOptions:
    workload: Workload
    loop: Literal["closed", "open"]
    profile: Profile | None  # None: until locust is stopped
    think_s: float

    @classmethod
    def of(cls, options: argparse.Namespace) -> RunOptions:
        prompts = read_prompts(Path(options.prompts)) if options.prompts else heldout_prompts()
        lengths, draws = Lengths.parse(options.lengths), (options.temperature, options.exact, options.workload_seed)
        workload = Workload(prompts, plans(options.modes), lengths, *draws)
        if options.loop == "open" and not options.levels:
            raise ValueError("--loop open without --levels; allowed: --levels SECONDS:RATE,…")
        profile = Profile.parse(options.levels) if options.levels else None
        return cls(workload, options.loop, profile, options.think_s)
