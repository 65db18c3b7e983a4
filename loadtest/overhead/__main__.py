"""`python -m loadtest.overhead`: what HTTP, Ray and the queue cost beside the engine alone.

The engine alone runs in this process, with the same threads and the same kind and number of requests. Service and
engine take turns; one is idle while the other works. At saturation, tokens per second of both are compared in rounds,
for whole answers and for streams. Answers differ in length, or all of them would end in the same step of the engine.
Lone requests are sent to both in turn, over one open connection. The CPU time of requests is counted by process.
Leave a core free: with as many torch threads as cores, engine and HTTP would compete for them.
"""

import argparse
import asyncio
import gc
import itertools
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.driver import drive, levels
from loadtest.generator.workload import Lengths, Workload, heldout_prompts, plans
from loadtest.harness import Running, options, percentile, report, say, service
from loadtest.overhead.alone import WARM_S, Alone, Lone, lone
from loadtest.overhead.cpu import FRONT, CpuTime, at_rest, cpu_time

#: kind of answer -> locust's user
_USERS = {"whole": "GenerateUser", "stream": "StreamUser"}
#: blocks of the long answers whose CPU time is counted
_MANY = 32
#: seconds in which the CPU time without requests is counted
_REST_S = 10.0


@dataclass
class Measured:
    #: kind -> tokens per second of engine and service, by round
    rates: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    singles: list[Lone] = field(default_factory=list)
    #: kind -> CPU time of requests
    cpu: dict[str, CpuTime] = field(default_factory=dict)
    #: milliseconds of CPU a second without requests
    idle: Mapping[str, float] = field(default_factory=dict)


def parse() -> argparse.Namespace:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--model", default=None, help="checkpoint; default: the demo")
    parser.add_argument("--mode", default="static")
    parser.add_argument("--threads", type=int, default=1, help="torch threads, in the replica and here")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--lengths", default="uniform:32-96", help="tokens of the answers at saturation")
    parser.add_argument("--short", type=int, default=16, help="tokens of a lone request")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each measurement at saturation")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lone", type=int, default=200, help="lone requests")
    parser.add_argument("--cpu", type=int, default=100, help="requests of each kind whose CPU time is counted")
    parser.add_argument("--ratio", type=float, default=0.9, help="the least share of the engine's tokens per second")
    parser.add_argument("--more-ms", type=float, default=4.0, help="most milliseconds added to p50 of a lone request")
    parser.add_argument("--out", type=Path, default=Path("loadtest-overhead"))
    return parser.parse_args()


def workload(arguments: argparse.Namespace, lengths: str) -> Workload:
    return Workload(heldout_prompts(), plans(arguments.mode), Lengths.parse(lengths), exact=True, seed=arguments.seed)


async def run(arguments: argparse.Namespace) -> int:
    max_running = max(64, arguments.concurrency)
    alone = Alone(arguments.model, arguments.threads, max_running)
    gc.freeze()
    flags: list[object] = ["--model", arguments.model] if arguments.model else []
    flags += ["--max-num-seqs", max_running]
    threads = {"MRP_SERVE_TORCH_THREADS": str(arguments.threads)}
    measured = Measured()
    async with service(arguments, *flags, environment=threads) as running:
        short = workload(arguments, f"fixed:{arguments.short}")
        bodies = [short.request(number, "lone").body for number in range(arguments.lone)]
        measured.singles = await asyncio.to_thread(lone, alone, running.url, bodies)
        if arguments.cpu:
            measured.idle = await at_rest(running, _REST_S)
            measured.cpu = await cpu(arguments, running, alone.block_size)
        measured.rates = await rates(arguments, alone, running)
    return conclude(arguments, measured)


async def rates(arguments: argparse.Namespace, alone: Alone, running: Running) -> dict[str, list[tuple[float, float]]]:
    requests = workload(arguments, arguments.lengths)
    bodies = (requests.request(number).body for number in itertools.count())
    kinds: dict[str, list[tuple[float, float]]] = {kind: [] for kind in _USERS}
    for number in range(arguments.rounds):
        engine = alone.tokens_per_s(bodies, arguments.concurrency, arguments.seconds)
        for kind, pairs in kinds.items():
            pairs.append((engine, await over_http(running.url, arguments, kind, number)))
            say(f"round {number + 1}, {kind}: engine alone {engine:.0f}, over HTTP {pairs[-1][1]:.0f} tokens/s")
    return kinds


async def over_http(url: str, arguments: argparse.Namespace, kind: str, number: int) -> float:
    load = f"{WARM_S + arguments.seconds:g}:{arguments.concurrency}"
    work = ("--modes", arguments.mode, "--lengths", arguments.lengths, "--exact", "--levels", load)
    rows = await drive(url, arguments.out / f"{kind}-{number}", _USERS[kind], *work)
    [(_, seen)] = levels(rows, WARM_S)
    if seen.failed:
        raise SystemExit(f"{seen.failed} of {seen.requests} requests failed")
    return seen.tokens_per_s


async def cpu(arguments: argparse.Namespace, running: Running, block_size: int) -> dict[str, CpuTime]:
    kinds = {}
    for blocks in (1, _MANY):
        requests = workload(arguments, f"fixed:{block_size * blocks}")
        for kind in ("whole", "stream"):
            bodies = [requests.request(n, kind).body | {"stream": kind == "stream"} for n in range(arguments.cpu)]
            kinds[f"{kind}, {blocks} block{'s' * (blocks > 1)}"] = await cpu_time(running, bodies, concurrency=8)
    return kinds


def conclude(arguments: argparse.Namespace, measured: Measured) -> int:
    """Reports medians of the rounds and of the lone requests. The limits decide the exit status."""
    result: dict[str, Any] = {
        "mode": arguments.mode, "threads": arguments.threads, "concurrency": arguments.concurrency,
        **_saturation(measured.rates), **_lone(arguments, measured.singles),
        **_cpu(measured.cpu, measured.idle),
    }  # fmt: skip
    limits = [(f"ratio_{kind}", arguments.ratio, -1) for kind in measured.rates]
    limits += [("lone_more_p50_ms", arguments.more_ms, 1)] if measured.singles else []
    broken = [
        f"{name} {result[name]}, wanted {limit}" for name, limit, sign in limits if sign * (result[name] - limit) > 0
    ]
    return report("overhead", result, broken)


def _saturation(rates: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for kind, pairs in rates.items():
        ratios = [http / engine for engine, http in pairs]
        result["engine_tokens_per_s"] = round(statistics.median(engine for engine, _ in pairs))
        result[f"{kind}_tokens_per_s"] = round(statistics.median(http for _, http in pairs))
        result[f"ratios_{kind}"] = [round(ratio, 3) for ratio in ratios]
        result[f"ratio_{kind}"] = round(statistics.median(ratios), 3)
    return result


def _lone(arguments: argparse.Namespace, singles: Sequence[Lone]) -> dict[str, Any]:
    if not singles:
        return {}
    columns = {name: [1e3 * vars(single)[name] for single in singles] for name in vars(singles[0])}
    columns["more"] = [1e3 * (single.over_http - single.alone) for single in singles]
    return {
        "lone_tokens": arguments.short,
        **{
            f"lone_{name}_p{share}_ms": percentile(times, share / 100)
            for name, times in columns.items()
            for share in (50, 99)
        },
    }


def _cpu(kinds: Mapping[str, CpuTime], idle: Mapping[str, float]) -> dict[str, Any]:
    """CPU time of a request beyond the idle service's, by kind and part; and of a further streamed block."""
    if not kinds:
        return {}
    beyond = {kind: time.beyond(idle) for kind, time in kinds.items()}
    front = [sum(beyond[f"stream, {blocks}"][part] for part in FRONT) for blocks in ("1 block", f"{_MANY} blocks")]
    return {
        "idle_cpu_ms_per_s": _rounded(idle),
        **{f"cpu_ms_{kind}": _rounded(parts) for kind, parts in beyond.items()},
        "cpu_ms_further_block": round((front[1] - front[0]) / (_MANY - 1), 3),
    }


def _rounded(parts: Mapping[str, float]) -> dict[str, float]:
    return {part: round(ms, 2) for part, ms in parts.items()}


if __name__ == "__main__":
    sys.exit(asyncio.run(run(parse())))
