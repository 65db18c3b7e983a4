"""Compares routing by prefix with routing by load: cache hits, clients' waits, and the load of the replicas.

    python -m loadtest.routing --replicas 2 --rounds 5 > dev/lab/results/routing.json

Two services that differ only in `routing` run on this machine. Every workload is sent to both in turn, since machines
are shared. Their caches are small, so that one replica cannot hold all prefixes of a workload. Prompts are random token
ids, new in every round, so only the prefixes of a workload are shared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from loadtest.harness import ready, service

ROUTINGS = ("prefix", "load")
FLAGS = ("--kv-cache-tokens", 8192, "--max-running", 4, "--torch-threads", 1)
#: ids of the demo's vocabulary that are plain tokens
_IDS = range(5, 435)
_ANSWER = {"mode": "static", "tokens_per_step": 8, "max_new_tokens": 16, "ignore_eos": True}


@dataclass
class Measured:
    """The results of one workload on one service. Times in milliseconds from the arrival at the ingress."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_block_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0
    per_replica: dict[str, float] = field(default_factory=dict)

    def take(self, answer: dict[str, Any]) -> None:
        """Counts an answer."""
        self.prompt_tokens += answer["usage"]["prompt_tokens"]
        self.completion_tokens += answer["usage"]["completion_tokens"]
        self.cached_tokens += answer["stats"]["cached_tokens"]
        self.first_block_ms.append(answer["stats"]["first_block_ms"])

    def row(self) -> dict[str, float]:
        """The reported values."""
        requests = self.per_replica.values()
        return {
            "requests": sum(requests),
            "cached_share": round(self.cached_tokens / self.prompt_tokens, 4),
            "first_block_ms_p50": round(statistics.median(self.first_block_ms), 2),
            "first_block_ms_p95": round(statistics.quantiles(self.first_block_ms, n=20)[-1], 2),
            "tokens_per_s": round(self.completion_tokens / self.seconds, 1),
            "busiest_over_mean": round(max(requests) * len(requests) / sum(requests), 3),
        }


# --- workloads: clients, each a sequence of requests -------------------------------------------------

#: the tokens of the last answer -> the client's next prompt
Client = Callable[[list[int]], list[int] | None]


def ids(rng: random.Random, count: int) -> list[int]:
    """Random tokens."""
    return rng.choices(_IDS, k=count)


def sessions(rng: random.Random) -> Iterator[Client]:
    """20 conversations of 6 turns. A turn adds 96 new tokens to all tokens before it."""
    for _ in range(20):
        yield _Conversation(random.Random(rng.random()), 6).ask


class _Conversation:
    def __init__(self, rng: random.Random, turns: int) -> None:
        self._rng = rng
        self._left = turns
        self._said = list[int]()

    def ask(self, answer: list[int]) -> list[int] | None:
        """The next turn's prompt."""
        if not self._left:
            return None
        self._left -= 1
        self._said += answer + ids(self._rng, 96)
        return list(self._said)


def documents(rng: random.Random) -> Iterator[Client]:
    """200 questions of 32 tokens about 24 documents of 512. The n-th document is used 1/n as often as the first."""
    library = [ids(rng, 512) for _ in range(24)]
    for document in rng.choices(library, [1 / n for n in range(1, 25)], k=200):
        yield once(document + ids(rng, 32))


def unshared(rng: random.Random) -> Iterator[Client]:
    """120 prompts of 256 tokens that have nothing in common."""
    for _ in range(120):
        yield once(ids(rng, 256))


def once(prompt: list[int]) -> Client:
    """A client with one request."""
    left = [prompt]
    return lambda _: left.pop() if left else None


WORKLOADS = {"sessions": sessions, "documents": documents, "unshared": unshared}


# --- asking -----------------------------------------------------------------------------------------


async def run(client: httpx.AsyncClient, clients: Iterator[Client], concurrency: int) -> Measured:
    """Runs all clients of a workload, `concurrency` at a time, in turns."""
    measured, before = Measured(), await ended(client)
    waiting: asyncio.Queue[tuple[Client, list[int]]] = asyncio.Queue()
    for one in clients:
        waiting.put_nowait((one, []))
    began = time.perf_counter()
    await asyncio.gather(*(_worker(client, waiting, measured) for _ in range(concurrency)))
    measured.seconds = time.perf_counter() - began
    measured.per_replica = {name: count - before.get(name, 0) for name, count in (await ended(client)).items()}
    return measured


async def _worker(client: httpx.AsyncClient, waiting: asyncio.Queue[Any], measured: Measured) -> None:
    while not waiting.empty():
        one, answer = waiting.get_nowait()
        prompt = one(answer)
        if prompt is None:
            continue
        response = await client.post("/generate", json={"prompt_token_ids": prompt, **_ANSWER})
        response.raise_for_status()
        measured.take(response.json())
        waiting.put_nowait((one, response.json()["token_ids"]))


async def ended(client: httpx.AsyncClient) -> dict[str, float]:
    """Replica -> number of requests that it has ended."""
    counts: dict[str, float] = {}
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        for sample in family.samples:
            if sample.name in {"mrp_request_success_total", "mrp_num_requests_running"}:
                count = sample.value if sample.name == "mrp_request_success_total" else 0
                counts[sample.labels["replica"]] = counts.get(sample.labels["replica"], 0) + count
    return counts


async def routed(client: httpx.AsyncClient) -> dict[str, float]:
    """How a replica was chosen -> number of requests."""
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    return {s.labels["by"]: s.value for f in families for s in f.samples if s.name == "mrp_request_routed_total"}


async def services(stack: AsyncExitStack, replicas: int) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    """The two services, each with a client."""
    for routing in ROUTINGS:
        flags = (*FLAGS, "--num-replicas", replicas, "--routing", routing)
        running = await stack.enter_async_context(service(argparse.Namespace(url=None, flags=""), *flags))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=running.url, timeout=300))
        await ready(client, replicas)
        yield routing, client


async def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs every workload on both services in turn."""
    rows: dict[str, dict[str, list[dict[str, float]]]] = {}
    async with AsyncExitStack() as stack:
        clients = [pair async for pair in services(stack, arguments.replicas)]
        for number in range(arguments.rounds + 1):  # the first round warms up
            for name, workload in WORKLOADS.items():
                for routing, client in clients if number % 2 else reversed(clients):
                    # A new random generator for each service: the same prompts for both, new ones in every round.
                    asked = workload(random.Random(f"{arguments.seed} {number} {name}"))
                    row = (await run(client, asked, arguments.concurrency)).row()
                    print(number, name, routing, row, file=sys.stderr)
                    if number:
                        rows.setdefault(name, {}).setdefault(routing, []).append(row)
        how = {routing: await routed(client) for routing, client in clients}
    medians = {name: {routing: _medians(found) for routing, found in by.items()} for name, by in rows.items()}
    return {"options": vars(arguments), "flags": list(FLAGS), "medians": medians, "routed": how, "rounds": rows}


def _medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(row[key] for row in rows), 4) for key in rows[0]}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--seed", type=int, default=17)
    print(json.dumps(asyncio.run(compare(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
