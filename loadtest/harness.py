"""The common parts of the scripts: a service, its processes and metrics, requests, and reports.

It uses only the program's name, its routes and the names of its processes.
"""

import argparse
import asyncio
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from loadtest.generator.protocol import Observation, Route, reader
from loadtest.generator.workload import ALL_MODES, heldout_prompts, plans

ROOT = Path(__file__).resolve().parents[1]
GENERATE = "/generate"
_START_S = 180
_STOP_S = 120
#: a part of the service -> how the command lines of its processes begin, or the program of Python that it is
PARTS = {
    "engine": "service.engine_process.process",
    "replica": "ray::ServeReplica:mrp:Generator",
    "ingress": "ray::ServeReplica:mrp:Ingress",
    "trainer": "ray::ServeReplica:mrp:MrpTrainer",
    "proxy": "ray::ProxyActor",
    "controller": "ray::ServeController",
    "raylet": "raylet/raylet",
    "gcs": "gcs/gcs_server",
    "agent": "ray::DashboardAgent",
    "rtenv": "ray::RuntimeEnvAgent",
    "driver": "service.cli",
}


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
    process = start(port, [*map(str, flags), *arguments.flags.split()], env=os.environ | (environment or {}))
    loop, script = asyncio.get_running_loop(), asyncio.current_task()
    loop.add_signal_handler(signal.SIGTERM, script.cancel)  # the service must not outlive the script
    try:
        running = Running(f"http://127.0.0.1:{port}", process.pid)
        async with httpx.AsyncClient(base_url=running.url) as client:
            await ready(client, 0, process)
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_S)


def start(port: int, flags: Sequence[str], env: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts `mrp-serve serve`. Ray prints to standard output, which is only for the result."""
    command = [sys.executable, "-m", "service.cli", "serve", "--port", str(port), *flags]
    paths = [str(ROOT), *filter(None, [env.get("PYTHONPATH")])]  # packages may lie elsewhere
    variables = {**env, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=sys.stderr, **options)  # noqa: S603 - our program


def client_of(url: str) -> httpx.AsyncClient:
    """A client that waits long, on connections without a limit."""
    return httpx.AsyncClient(base_url=url, timeout=180, limits=httpx.Limits(max_connections=None))


async def ready(client: httpx.AsyncClient, replicas: int, process: subprocess.Popen[bytes] | None = None) -> None:
    """Waits until so many replicas are ready, and the service is healthy."""
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        if process and process.poll() is not None:
            raise SystemExit(f"the service ended with {process.returncode}")
        if (count := await replicas_ready(client)) is not None and count >= replicas:
            return
        await asyncio.sleep(0.1)
    raise SystemExit(f"{replicas} replicas were not ready within {_START_S} s")


async def replicas_ready(client: httpx.AsyncClient) -> int | None:
    """The number by /health. None: the service is not healthy, or does not answer."""
    with suppress(httpx.TransportError, ValueError):
        health = await client.get("/health", timeout=5)
        return int(health.json()["replicas_ready"]) if health.status_code == 200 else None
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- its processes ---------------------------------------------------------------------------------


def part_of(process: int) -> str:
    """The part of the service that a process is; or the beginning of its command line."""
    with suppress(psutil.Error):  # it has ended
        words = psutil.Process(process).cmdline() or [""]
        for part, mark in PARTS.items():
            if words[0].startswith(mark) or words[0].endswith(mark) or mark in words[1:5]:
                return part
        return " ".join(words)[:80].strip()
    return ""


def processes(running: Running, part: str) -> list[int]:
    children = psutil.Process(running.pid).children(recursive=True)
    return sorted(process.pid for process in children if part_of(process.pid) == part)


def memory_mib(process: int) -> float:
    """Resident memory of a process; 0 if it has ended."""
    with suppress(psutil.Error):
        return psutil.Process(process).memory_info().rss / 2**20
    return 0.0


def memory(running: Running) -> dict[str, float]:
    parts = ("replica", "engine", "ingress", "proxy", "trainer")
    return {f"{part} {pid}": round(memory_mib(pid), 1) for part in parts for pid in processes(running, part)}


def _listener(url: str) -> int | None:
    """The process of `mrp-serve serve` on this machine that listens on the URL's port."""
    wanted = {"serve", str(httpx.URL(url).port)}
    programs = (process for process in psutil.process_iter(["cmdline"]) if wanted <= set(process.info["cmdline"] or ()))
    return next((program.pid for program in programs), None)


# --- its metrics -----------------------------------------------------------------------------------


async def samples(client: httpx.AsyncClient) -> list[Sample]:
    page = (await client.get("/metrics", timeout=30)).text
    return [sample for family in text_string_to_metric_families(page) for sample in family.samples]


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    """Every metric of /metrics, summed over replicas and labels."""
    totals: dict[str, float] = defaultdict(float)
    for sample in await samples(client):
        totals[sample.name.removeprefix("mrp_")] += sample.value
    return totals


# --- requests --------------------------------------------------------------------------------------


def requests(count: int, seed: int, tokens: int) -> list[dict[str, Any]]:
    """Held-out problems in all modes, greedy and at random, whole and streamed."""
    draw, prompts, modes = random.Random(seed), heldout_prompts(), plans(ALL_MODES)
    return [
        {
            **draw.choice(prompts),
            "max_new_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0.8 if number // 2 % 2 else 0.0,
            "seed": draw.randrange(2**40),
            "stream": bool(number % 2),
            **dict(modes[number % len(modes)].knobs),
        }
        for number in range(count)
    ]


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
    """The value that `share` of the values do not exceed, rounded. None: there are no values."""
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)], 3) if ordered else None


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
