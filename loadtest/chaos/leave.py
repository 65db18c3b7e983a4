"""Clients that leave long answers: no request may go on without its client.

A client leaves before the first block, within a stream, or while a whole answer is decoded. Each answer would take far
longer than its client stays. The replicas count how their requests ended. What ended otherwise than by an abort went on
to its end, though nobody waited for it. What no replica counts had not reached an engine.
"""

import argparse
import asyncio
import sys
from collections import Counter

from loadtest.chaos.churn import LEAVING, REST, at_rest, churn, ended
from loadtest.harness import client_of, options, report, requests, say, service


def parse() -> argparse.Namespace:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--together", type=int, default=16, help="clients at once")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of an answer if its client stayed")
    parser.add_argument("--stay-s", type=float, default=0.5, help="the longest that a client without a stream stays")
    return parser.parse_args()


async def run(arguments: argparse.Namespace) -> int:
    bodies = requests(arguments.clients, arguments.seed, arguments.tokens)
    async with service(arguments) as running, client_of(running.url) as client:
        before = await ended(client)
        ends = await churn(client, bodies, arguments.together, LEAVING, arguments.stay_s)
        say(f"{ends.total()} clients are gone")
        rest = await at_rest(client)
        counted = await ended(client) - before
    return conclude(ends, rest, counted)


def conclude(ends: Counter[str], rest: dict[str, float], counted: Counter[str]) -> int:
    """Prints the result. Exit status 1 if a request went on, if something still runs, or if nobody left."""
    left = sum(count for end, count in ends.items() if end.endswith(": left"))
    answered = sum(count for end, count in ends.items() if end.endswith(": answered"))
    went_on = counted.total() - counted["abort"] - answered
    strange = {end: count for end, count in ends.items() if not end.endswith((": left", ": answered"))}
    result = {
        "clients": ends.total(),
        "left": left,
        "ends": dict(sorted(ends.items())),
        "aborted": counted["abort"],
        "before_an_engine": left - counted["abort"] - went_on,
        "went_on": went_on,
        **rest,
    }
    broken = [f"{went_on} of {left} requests went on without their clients"] if went_on else []
    broken += [f"{name} is {rest[name]:g}" for name in REST if rest[name]]
    broken += [f"unexpected ends: {strange}"] if strange else []
    broken += [] if left else ["no client left"]
    return report("leave", result, broken)


if __name__ == "__main__":
    sys.exit(asyncio.run(run(parse())))
