"""Updates under load: all replicas are replaced, and every request must get the answer of a quiet run.

    python -m loadtest.chaos.rolling --replicas 1 --updates 2
    python -m loadtest.chaos.rolling --url http://host:8000 --command "serve deploy changed.yaml" --wait 60

Without `--url`, the script starts a cluster and a service, and deploys the service again under another model name. That
replaces ingresses and replicas. With `--url`, `--command` updates the running service. A fixed number of clients asks
for streams and whole answers in all modes in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from loadtest.harness import Outcome, ask, demo_prompts, free_port, options, report, requests, say
from service.cli import cluster
from service.settings.settings import Settings

_BEFORE_S, _AFTER_S = 3.0, 5.0


@dataclass
class Tally:
    """The outcomes of all requests. Pauses are in seconds."""

    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    differing: int = 0
    longest_answer: float = 0.0
    longest_pause_in_a_stream: float = 0.0
    longest_without_any_answer: float = 0.0
    last: float = field(default_factory=time.monotonic)

    def count(self, body: dict[str, Any], quiet: Outcome, outcome: Outcome) -> None:
        """Compares an answer with that of the quiet run."""
        if not outcome.ok:
            self.failed[f"{'stream' if body['stream'] else 'unary'} {outcome.status} {outcome.error}"[:200]] += 1
            return
        now = time.monotonic()
        self.answered += 1
        self.differing += outcome.tokens != quiet.tokens
        self.longest_answer = max(self.longest_answer, outcome.total_s)
        self.longest_without_any_answer = max(self.longest_without_any_answer, now - self.last)
        self.last = now
        if body["stream"]:
            self.longest_pause_in_a_stream = max(self.longest_pause_in_a_stream, *outcome.gaps[1:], 0.0)


class Load:
    """Clients that each send one request at a time, until they are stopped."""

    def __init__(self, http: httpx.AsyncClient, bodies: list[dict[str, Any]], quiet: list[Outcome]) -> None:
        self._http, self._pairs = http, itertools.cycle(zip(bodies, quiet, strict=True))
        self._tally = Tally()
        self._stopped = False
        self._tasks = []

    def start(self, clients: int) -> None:
        """Starts the clients."""
        self._tasks = [asyncio.create_task(self._client()) for _ in range(clients)]

    async def stop(self) -> Tally:
        """Stops the clients and waits for the last answers."""
        self._stopped = True
        await asyncio.gather(*self._tasks)
        return self._tally

    async def _client(self) -> None:
        while not self._stopped:
            body, quiet = next(self._pairs)
            self._tally.count(body, quiet, await ask(self._http, body))


async def _under_load(arguments: argparse.Namespace, http: httpx.AsyncClient) -> tuple[Tally, list[float]]:
    bodies = requests(30, arguments.seed, arguments.tokens, demo_prompts())
    load = Load(http, bodies, [await ask(http, body) for body in bodies])
    load.start(arguments.clients)
    await asyncio.sleep(_BEFORE_S)
    updates = []
    for number in range(1, arguments.updates + 1):
        began, before = time.monotonic(), await _model(http)
        await asyncio.to_thread(_update, arguments, number)
        updates.append(round(time.monotonic() - began, 1))
        say(f"update {number}: {before} -> {await _model(http)} after {updates[-1]} s")
    await asyncio.sleep(_AFTER_S)
    return await load.stop(), updates


async def _model(http: httpx.AsyncClient) -> str:
    return str((await http.get("/v1/models")).json()["data"][0]["id"])


def _update(arguments: argparse.Namespace, number: int) -> None:
    if arguments.url:
        subprocess.run(arguments.command, shell=True, check=True)  # noqa: S602 - the caller's own command
        time.sleep(arguments.wait)
    else:
        cluster.deploy(_settings(arguments, number))


def _settings(arguments: argparse.Namespace, number: int) -> Settings:
    name = f"update-{number}"
    os.environ["MRP_SERVE_TORCH_THREADS"] = "1"
    fixed = {"api_server_count": 2}  # Serve's proxy listens, so an update does not move the port
    return Settings(port=arguments.port, num_replicas=arguments.replicas, served_model_name=name, **fixed)


async def _measure(arguments: argparse.Namespace) -> int:
    headers = {"authorization": f"Bearer {arguments.key}"} if arguments.key else {}
    url = arguments.url or f"http://127.0.0.1:{arguments.port}"
    async with httpx.AsyncClient(base_url=url, timeout=120, headers=headers) as http:
        tally, updates = await _under_load(arguments, http)
    result = {name: value for name, value in vars(tally).items() if name != "last"}
    broken = [f"{sum(tally.failed.values())} requests failed"] if tally.failed else []
    broken += [f"{tally.differing} answers differ"] if tally.differing else []
    return report("rolling", {"replicas": arguments.replicas, "update_seconds": updates, **result}, broken)


def main() -> int:
    """Runs the script and returns its exit status."""
    parser = options(__doc__ or "")
    parser.add_argument("--command", help="updates the service of --url")
    parser.add_argument("--wait", type=float, default=60.0, help="seconds that update takes after its command")
    parser.add_argument("--key", help="an API key of the service of --url")
    parser.add_argument("--replicas", type=int, default=1, help="replicas of the service that the script starts")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of every answer")
    parser.add_argument("--updates", type=int, default=1)
    arguments = parser.parse_args()
    if bool(arguments.url) != bool(arguments.command):
        parser.error("--url and --command go together")
    arguments.port = free_port()
    if arguments.url:
        return asyncio.run(_measure(arguments))
    try:
        cluster.start(_settings(arguments, 0))
        cluster.deploy(_settings(arguments, 0))
        return asyncio.run(_measure(arguments))
    finally:
        cluster.stop()


if __name__ == "__main__":
    raise SystemExit(main())
