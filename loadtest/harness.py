"""The common parts of the chaos scripts: a service, its processes and metrics, requests, and reports.

It uses only the program's name, its routes and the names of its processes.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from loadtest.generator.protocol import Observation, Route, reader
from loadtest.report.summary import percentile as nearest_rank

ROOT = Path(__file__).resolve().parents[1]
GENERATE = "/generate"
_START_S = 180
_STOP_S = 120

PLANS = (
    {"mode": "static"},
    {"mode": "dynamic", "threshold": 0.7},
    {"mode": "direct", "mrp_steps": 1},
    {"mode": "speculative", "mrp_steps": 2},
    {"mode": "remask", "threshold": 0.5},
)


# --- the service -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Running:
    """A running service: its URL and, if the script started it, the process of its program."""

    url: str
    pid: int | None


def options(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--url", help="a running service; it and its replicas must be on this machine")
    parser.add_argument("--flags", default="", help="further flags of `mrp-serve serve`, in one text")
    parser.add_argument("--seed", type=int, default=17)
    return parser


@asynccontextmanager
async def service(
    arguments: argparse.Namespace, *flags: object, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Running]:
    if arguments.url:
        yield Running(arguments.url.rstrip("/"), _listener(arguments.url))
        return
    port = free_port()
    command = [sys.executable, "-m", "service.cli.main", "serve", "--port", str(port)]
    command += [*map(str, flags), *arguments.flags.split()]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    # Ray prints to standard output, which is only for the result
    process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=sys.stderr)  # noqa: S603 - our own program
    loop, script = asyncio.get_running_loop(), asyncio.current_task()
    loop.add_signal_handler(signal.SIGTERM, script.cancel)  # the service must not outlive the script
    try:
        running = Running(f"http://127.0.0.1:{port}", process.pid)
        async with httpx.AsyncClient(base_url=running.url) as client:
            await ready(client, 0, process=process)
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_S)


async def ready(
    client: httpx.AsyncClient,
    replicas: int,
    timeout_s: float = _START_S,
    process: subprocess.Popen[bytes] | None = None,
) -> float:
    began = time.monotonic()
    while time.monotonic() - began < timeout_s:
        if process and process.poll() is not None:
            raise SystemExit(f"the service ended with {process.returncode}")
        try:
            health = await client.get("/health", timeout=10)
            if health.status_code == 200 and health.json()["replicas_ready"] >= replicas:
                return time.monotonic() - began
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.1)
    raise SystemExit(f"{replicas} replicas were not ready within {timeout_s:.0f} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- its processes ---------------------------------------------------------------------------------


#: the processes of the replicas' engines
ENGINE = "service.engine_process.process"


def processes(running: Running, name: str) -> list[int]:
    titles: dict[int, str] = {}
    for process in psutil.Process(running.pid).children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            titles[process.pid] = " ".join(process.cmdline())
    return sorted(
        process for process, title in titles.items() if name in title and (title.startswith("ray::") or name == ENGINE)
    )


def memory_mib(process: int) -> float:
    """Resident memory of a process; 0 if it has ended."""
    with suppress(psutil.Error):
        return psutil.Process(process).memory_info().rss / 2**20
    return 0.0


def memory(running: Running) -> dict[str, float]:
    names = ("Generator", ENGINE, "Ingress", "ProxyActor")
    return {
        f"{name} {process}": round(memory_mib(process), 1) for name in names for process in processes(running, name)
    }


def _listener(url: str) -> int | None:
    """The process of `mrp-serve serve` on this machine that listens on the URL's port."""
    wanted = {"serve", str(httpx.URL(url).port)}
    programs = (process for process in psutil.process_iter(["cmdline"]) if wanted <= set(process.info["cmdline"] or ()))
    return next((program.pid for program in programs), None)


# --- its metrics -----------------------------------------------------------------------------------


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    """Every metric of /metrics, summed over replicas and labels."""
    totals: dict[str, float] = {}
    page = (await client.get("/metrics", timeout=30)).text
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            name = sample.name.removeprefix("mrp_")
            totals[name] = totals.get(name, 0.0) + sample.value
    return totals


# --- requests --------------------------------------------------------------------------------------


def requests(count: int, seed: int, tokens: int, prompts: Sequence[str]) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {
            "messages": [{"role": "user", "content": draw.choice(prompts)}],
            "max_new_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0.8 if number // 2 % 2 else 0.0,
            "seed": draw.randrange(2**40),
            "stream": bool(number % 2),
            **PLANS[number % len(PLANS)],
        }
        for number in range(count)
    ]


def demo_prompts() -> list[str]:
    from service.demo import heldout_problems

    return [problem.prompt for problem in heldout_problems()]


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> Observation:
    """Sends one request and reads the whole answer, streamed or not. `status` 0: the connection broke."""
    seen = observation_of(body)
    try:
        async with client.stream("POST", GENERATE, json=body) as response:
            await receive(seen, response.status_code, response.headers, response.aiter_lines(), response.aread)
    except httpx.TransportError as error:
        seen.lost(error, time.monotonic())
    return seen


def observation_of(body: dict[str, Any]) -> Observation:
    """The observation of a request that is sent now."""
    began = time.monotonic()
    return Observation(Route(GENERATE, bool(body.get("stream")), openai=False), body.get("mode", ""), began, began)


async def receive(
    seen: Observation,
    status: int,
    headers: Mapping[str, str],
    lines: AsyncIterator[str | bytes],
    whole: Callable[[], Awaitable[bytes]],
) -> None:
    """Reads an answer into its observation, by the lines of a stream or as a whole."""
    parser, seen.status = reader(seen), status
    if status == 200 and seen.route.stream:
        async for line in lines:
            parser.line(line.encode() if isinstance(line, str) else line, time.monotonic())
        parser.end(time.monotonic())
    elif status == 200:
        parser.whole(await whole(), time.monotonic())
    else:
        parser.refused(await whole(), headers.get("retry-after"), time.monotonic())


# --- reports ---------------------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float | None:
    """The percentile of the nearest rank, rounded for a report."""
    value = nearest_rank(values, share)
    return None if value is None else round(value, 3)


def say(text: str) -> None:
    """Prints a line to stderr. Standard output is only for the result."""
    print(text, file=sys.stderr, flush=True)


def report(name: str, result: dict[str, Any], broken: Sequence[str]) -> int:
    """Prints the result as one line of JSON, and a summary. The exit status is 1 if an invariant is broken."""
    width = max(map(len, result))
    say("\n".join([f"{name}:", *(f"  {key:<{width}}  {value}" for key, value in result.items())]))
    say("  " + ("; ".join(f"BROKEN: {what}" for what in broken) or "all invariants hold"))
    print(json.dumps({"script": name, **result, "broken": list(broken)}), flush=True)
    return 1 if broken else 0
