"""Throughput, overhead and cost of the service with growing numbers of simulated replicas.

For every number of replicas it measures the overhead of single requests (client's time less simulated time), `/metrics`
and `/health`. Then a closed loop keeps all places full: tokens per second compared with the simulation's own, and the
CPU time of every kind of process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp

from loadtest.fleet.clock import Speed
from loadtest.fleet.cluster import Fleet, fleet
from loadtest.fleet.load import Asked, Crowd, ask, session
from loadtest.harness import ROOT, percentile, ready, say

_RESULTS = ROOT / "dev" / "lab" / "results"
#: per request on the demo: drafts of MRP, and rows of a verification
_DRAFTS = 4


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.fleet", description=__doc__.splitlines()[0])
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--ingresses", type=int, default=1)
    parser.add_argument("--max-running", type=int, default=8, help="requests that a replica decodes at once")
    parser.add_argument("--tokens", type=int, default=256, help="mean tokens of an answer")
    parser.add_argument("--stream", action="store_true", help="stream the answers of the closed loop")
    parser.add_argument("--steps", type=Path, default=_RESULTS / "bench-cpu-1-threads.json", help="times of `bench`")
    parser.add_argument(
        "--evaluation", type=Path, default=_RESULTS / "eval-300.json", help="tokens per forward of `eval`"
    )
    parser.add_argument("--slowdown", type=float, default=5.0, help="factor on the measured step times")
    parser.add_argument("--clients", type=float, default=1.1, help="clients of the closed loop per place")
    parser.add_argument("--warm-s", type=float, default=40.0, help="warm-up of the closed loop, in seconds")
    parser.add_argument("--seconds", type=float, default=60.0, help="measured seconds of the closed loop; 0: none")
    parser.add_argument("--singles", type=int, default=100, help="single requests, whole and streamed")
    parser.add_argument("--routing", help="the setting `routing`")
    parser.add_argument("--listener", choices=("ingress", "proxy"), default="proxy", help="the setting `listener`")
    parser.add_argument("--output", type=Path, help="writes the rows as JSON")
    return parser.parse_args(arguments)


def speed_of(arguments: argparse.Namespace) -> Speed:
    """The step times and tokens per forward of the demo, speculative with 4 drafts."""
    steps = json.loads(arguments.steps.read_text("utf-8"))["steps"]
    plans = json.loads(arguments.evaluation.read_text("utf-8"))
    [plan] = [p for p in plans if p["plan"] == f"speculative mrp_steps={_DRAFTS}" and p["mrp"] == "mrp"]
    table = [(step["rows"], step["backbone"], step["mrp"]) for step in steps]
    return Speed(table, _DRAFTS + 1, _DRAFTS, plan["tokens_per_forward"], arguments.slowdown)


async def measure(running: Fleet, replicas: int, speed: Speed, arguments: argparse.Namespace) -> dict[str, Any]:
    """One row: all measurements with one number of replicas."""
    row: dict[str, Any] = {"replicas": replicas, "ingresses": arguments.ingresses}
    async with session(running.url) as http:
        row |= await pages(http)
        for stream in (False, True):
            kind = "stream" if stream else "unary"
            row |= {f"{kind}_{key}": value for key, value in (await overhead(http, arguments, stream)).items()}
        row["memory_mib"] = {role: round(mib) for role, mib in running.memory_mib().items()}
        row["idle_cpu"] = await idle(running)
        if arguments.seconds:
            row |= await saturate(running, http, speed, replicas, arguments)
    return row


async def pages(http: aiohttp.ClientSession) -> dict[str, float]:
    """The times of the pages that query all replicas, in milliseconds (medians of 9), and the size of /metrics."""
    found: dict[str, float] = {}
    for path in ("/health", "/metrics", "/live"):
        times = []
        for _ in range(9):
            began = time.perf_counter()
            async with http.get(path) as response:
                size = len(await response.read())
            times.append(1e3 * (time.perf_counter() - began))
        found[f"{path[1:]}_ms"] = percentile(times, 0.5) or 0.0
        if path == "/metrics":
            found["metrics_kib"] = round(size / 1024)
    return found


async def overhead(http: aiohttp.ClientSession, arguments: argparse.Namespace, stream: bool) -> dict[str, float | None]:
    """Milliseconds to the first block (or whole answer) less the simulated time, one request at a time."""
    body = Asked(4, stream).body(None)
    times = []
    for number in range(arguments.singles + 10):
        seen = await ask(http, body)
        if seen.status != 200:
            raise SystemExit(f"a single request was answered with {seen.status}")
        if number >= 10:
            times.append(1e3 * (seen.first_s - seen.engine_first_s))
        await asyncio.sleep(0.02)
    return {"overhead_ms_p50": percentile(times, 0.5), "overhead_ms_p99": percentile(times, 0.99)}


async def idle(running: Fleet, seconds: float = 5.0) -> dict[str, float]:
    """The share of one core that each role uses without requests."""
    before = running.cpu_s()
    await asyncio.sleep(seconds)
    return {role: round((cpu - before[role]) / seconds, 3) for role, cpu in running.cpu_s().items()}


async def saturate(
    running: Fleet, http: aiohttp.ClientSession, speed: Speed, replicas: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """A closed loop: tokens per second, and the CPU seconds per request of every role."""
    places = replicas * (arguments.max_running + max(1, arguments.max_running // 4))
    own = replicas * speed.tokens_per_second(arguments.max_running)
    crowd = Crowd(http, Asked(arguments.tokens, arguments.stream), math.ceil(arguments.clients * places))
    async with crowd:
        await asyncio.sleep(arguments.warm_s)
        before = running.cpu_s()
        counted = await crowd.window(arguments.seconds)
        cpu = {role: seconds - before[role] for role, seconds in running.cpu_s().items()}
    cpu["client"] = counted.client_cpu_s
    decoded, answered = counted.decoded / counted.seconds, counted.answered / counted.seconds
    return {
        "clocks_tokens_per_s": round(own, 1),
        "decoded_tokens_per_s": round(decoded, 1),
        "answered_tokens_per_s": round(answered, 1),
        "decoded_share": round(decoded / own, 4),
        "answered_share": round(answered / own, 4),
        "loaded_metrics_ms": round(1e3 * counted.metrics_s),
        "requests_per_s": round(counted.answers / counted.seconds, 2),
        "blocks_per_s": round(counted.blocks / counted.seconds, 1),
        "statuses": counted.statuses,
        "cpu": {role: round(seconds / counted.seconds, 3) for role, seconds in cpu.items()},
        "cpu_ms_a_request": {role: round(1e3 * seconds / max(1, counted.answers), 2) for role, seconds in cpu.items()},
    }


def main() -> int:
    arguments = parse()
    speed = speed_of(arguments)
    settings: dict[str, Any] = {"num_ingresses": arguments.ingresses, "max_running": arguments.max_running}
    settings |= {"max_waiting": 4096, "max_queue_s": 3600.0}  # no request is refused
    settings |= {"routing": arguments.routing} if arguments.routing else {}
    settings |= {"listener": arguments.listener}
    # an ingress that listens itself cannot be replaced while it runs, so each number gets a service of its own
    together = [arguments.replicas] if arguments.listener == "proxy" else [[number] for number in arguments.replicas]
    rows = []
    for numbers in together:
        with fleet(speed, max(numbers), **settings) as running:
            rows += [measured(running, number, speed, arguments) for number in numbers]
    asked = {name: value.name if isinstance(value, Path) else value for name, value in vars(arguments).items()}
    result = {"speed": asdict(speed), "arguments": asked, "rows": rows}
    print(json.dumps(result))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return 0


def measured(running: Fleet, replicas: int, speed: Speed, arguments: argparse.Namespace) -> dict[str, Any]:
    """One row, once so many replicas serve."""
    began = time.monotonic()
    running.resize(replicas)
    asyncio.run(until_ready(running, replicas))
    say(f"{replicas} replicas serve after {time.monotonic() - began:.0f} s")
    row = asyncio.run(measure(running, replicas, speed, arguments))
    say(json.dumps(row))
    return row


async def until_ready(running: Fleet, replicas: int) -> None:
    """Waits until the ingresses know all replicas."""
    import httpx

    async with httpx.AsyncClient(base_url=running.url) as client:
        await ready(client, replicas)


if __name__ == "__main__":
    sys.exit(main())
