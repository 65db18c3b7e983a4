"""`python -m loadtest.overhead`: the cost of HTTP, Ray and the queue, compared with the engine alone.

The engine alone runs in this process, with the same threads and the same kind and number of requests. Service and
engine take turns; one is idle while the other works. At saturation, tokens per second of both are compared in rounds.
Lone requests are sent to both in turn, by HTTP over one open connection. Leave a core free: with as many torch threads
as cores, engine and HTTP would compete for them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from loadtest.generator.workload import Json, Lengths, Workload, heldout_prompts, plans
from loadtest.harness import options, report, say, service
from loadtest.report.driver import Driver
from loadtest.report.scenario import Run, Slo
from loadtest.report.summary import points

if TYPE_CHECKING:
    from service.engine import Engine, GenerationRequest

_WARM_S = 2.0


class Alone:
    """The engine without a service. It takes the bodies of POST /generate."""

    def __init__(self, model: str | None, threads: int, max_running: int) -> None:
        import torch

        from service.cli.options import load
        from service.engine import Engine, EngineConfig
        from service.text import TextCodec

        torch.set_num_threads(threads)
        checkpoint = load(model, "auto", "auto", None)
        self._codec = TextCodec.load(checkpoint.path)
        self._ends = frozenset(checkpoint.config.eos_token_ids)
        self._engine: Engine = Engine(checkpoint, EngineConfig(max_running=max_running))

    def tokens_per_s(self, bodies: Iterator[Json], together: int, seconds: float) -> float:
        """Tokens per second with `together` requests at once, after a warm-up.

        The window begins with the end of the warm-up's last step. It has at least one block, however long a step is.
        """
        names = itertools.count()
        steps = self._steps(bodies, together, names)
        _produced(steps, _WARM_S)
        began = time.perf_counter()
        tokens = _produced(steps, seconds)
        measured = time.perf_counter() - began
        for name in range(next(names)):
            self._engine.abort(str(name))
        return tokens / measured

    def _steps(self, bodies: Iterator[Json], together: int, names: Iterator[int]) -> Iterator[int]:
        """The tokens of each step of the engine, with `together` requests at once."""
        for _ in range(together):
            self._engine.submit(self._request(next(bodies), next(names)))
        while True:
            tokens = 0
            for event in self._engine.step():
                tokens += len(event.token_ids)
                if event.finish_reason:
                    self._engine.submit(self._request(next(bodies), next(names)))
            yield tokens

    def seconds(self, body: Json) -> float:
        """The seconds of one request alone, tokenisation included."""
        began = time.perf_counter()
        [completion] = self._engine.generate([self._request(body, 0)])
        self._codec.decode(completion.token_ids)
        return time.perf_counter() - began

    def _request(self, body: Json, name: int) -> GenerationRequest:
        from service.decode.registry import make_params
        from service.engine import GenerationRequest, SamplingParams

        knobs = {
            knob: body[knob]
            for knob in ("threshold", "mrp_steps", "tokens_per_step", "entropy_bound", "verify")
            if knob in body
        }
        return GenerationRequest(
            str(name),
            tuple(self._codec.encode_chat(body["messages"])),
            make_params(body["mode"], knobs),
            SamplingParams(body["temperature"], seed=body["seed"]),
            body["max_new_tokens"],
            frozenset() if body.get("ignore_eos") else self._ends,
        )


def _produced(steps: Iterator[int], seconds: float) -> int:
    """The tokens of the steps in `seconds`, and of the steps after that until there is a token."""
    tokens, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end or not tokens:
        tokens += next(steps)
    return tokens


@dataclass(frozen=True)
class Lone:
    """The seconds of a request at the engine alone, over HTTP, and by the service's own count."""

    alone: float
    over_http: float
    inside: float


def lone(alone: Alone, url: str, bodies: Sequence[Json]) -> list[Lone]:
    """Sends each body to both in turn."""
    address = httpx.URL(url)
    connection = http.client.HTTPConnection(address.host, address.port, timeout=120)
    found = []
    for body in bodies:
        mine = alone.seconds(body)
        began = time.perf_counter()
        connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        took = time.perf_counter() - began
        found.append(Lone(mine, took, answer["stats"]["total_ms"] / 1000))
    connection.close()
    return found[len(found) // 10 :]  # the first requests are the warm-up


async def over_http(driver: Driver, arguments: argparse.Namespace, number: int) -> float:
    """Tokens per second over HTTP, with as many users as the engine has requests."""
    run = Run(
        name=f"saturation-{number}",
        levels=f"{_WARM_S + arguments.seconds:g}:{arguments.concurrency}",
        modes=arguments.mode,
        lengths=f"fixed:{arguments.tokens}",
        exact=True,
    )
    record = await driver.drive(run, lambda _: None)
    [point] = points(run, record.rows, record.samples, Slo(), _WARM_S)
    if point.failed:
        raise SystemExit(f"{point.failed} of {point.requests} requests failed")
    return point.tokens_per_s


def parse() -> argparse.Namespace:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--model", default=None, help="checkpoint; default: the demo")
    parser.add_argument("--mode", default="static")
    parser.add_argument("--threads", type=int, default=1, help="torch threads, in the replica and here")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer at saturation")
    parser.add_argument("--short", type=int, default=16, help="tokens of a lone request")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each measurement at saturation")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lone", type=int, default=200, help="lone requests")
    parser.add_argument("--ratio", type=float, default=0.9, help="the least share of the engine's tokens per second")
    parser.add_argument("--more-ms", type=float, default=3.0, help="most milliseconds added to p50 of a lone request")
    parser.add_argument("--out", type=Path, default=Path("loadtest-overhead"))
    return parser.parse_args()


def workload(arguments: argparse.Namespace, tokens: int) -> Workload:
    """Requests for answers of exactly `tokens` tokens."""
    return Workload(heldout_prompts(), plans(arguments.mode), Lengths("fixed", tokens), exact=True, seed=arguments.seed)


async def run(arguments: argparse.Namespace) -> int:
    arguments.out.mkdir(parents=True, exist_ok=True)
    alone = Alone(arguments.model, arguments.threads, max_running=64)
    gc.freeze()
    flags = [*(("--model", arguments.model) if arguments.model else ()), "--torch-threads", arguments.threads]
    bodies = (workload(arguments, arguments.tokens).request(number).body for number in itertools.count())
    async with service(arguments, *flags) as running:
        driver, rates = Driver(running.url, arguments.out), []
        for number in range(arguments.rounds):
            mine = alone.tokens_per_s(bodies, arguments.concurrency, arguments.seconds)
            rates.append((mine, await over_http(driver, arguments, number)))
            say(f"round {number + 1}: engine alone {mine:.0f}, over HTTP {rates[-1][1]:.0f} tokens/s")
        short = workload(arguments, arguments.short)
        one_by_one = lone(alone, running.url, [short.request(number, "lone").body for number in range(arguments.lone)])
    return conclude(arguments, rates, one_by_one)


def conclude(arguments: argparse.Namespace, rates: Sequence[tuple[float, float]], singles: Sequence[Lone]) -> int:
    """Reports medians of the rounds and of the lone requests. The two limits decide the exit status."""
    ratio = statistics.median(theirs / mine for mine, theirs in rates)
    p50 = {name: 1000 * statistics.median(vars(one)[name] for one in singles) for name in vars(singles[0])}
    more = p50["over_http"] - p50["alone"]
    result: dict[str, Any] = {
        "mode": arguments.mode,
        "threads": arguments.threads,
        "concurrency": arguments.concurrency,
        "engine_tokens_per_s": round(statistics.median(mine for mine, _ in rates)),
        "http_tokens_per_s": round(statistics.median(theirs for _, theirs in rates)),
        "ratios": [round(theirs / mine, 3) for mine, theirs in rates],
        "ratio": round(ratio, 3),
        "lone_tokens": arguments.short,
        "lone_engine_p50_ms": round(p50["alone"], 2),
        "lone_http_p50_ms": round(p50["over_http"], 2),
        "lone_inside_p50_ms": round(p50["inside"], 2),
        "lone_more_ms": round(more, 2),
    }
    broken = [f"ratio {ratio:.3f}, wanted {arguments.ratio}"] if ratio < arguments.ratio else []
    broken += [f"{more:.2f} ms more for a lone request, wanted {arguments.more_ms}"] if more > arguments.more_ms else []
    return report("overhead", result, broken)


if __name__ == "__main__":
    sys.exit(asyncio.run(run(parse())))
