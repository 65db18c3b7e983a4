"""`python -m loadtest.online`: a service whose MRP learns from the requests of this script.

First the answers come, in windows: accepted drafts a forward by version of MRP, answers a second, the trainer's memory.
Then windows with the trainer take turns with windows in which its process is stopped: their ratio is what learning
costs. At last `static` answers the same prompts. No answer may differ, and no request may fail.
"""

import argparse
import asyncio
import itertools
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from loadtest.generator.workload import read_prompts
from loadtest.harness import GENERATE, Running, client_of, memory_mib, options, processes, report, say, service

_DRAFTS = {"mode": "speculative", "mrp_steps": 2, "max_drafts": 4}
_STATIC_CLIENTS = 16


@dataclass(frozen=True)
class Answer:
    """An answer, and when it had come. `prompt`: its number. `forwards`: of the backbone, without prefill."""

    prompt: int
    ended: float
    token_ids: tuple[int, ...]
    accepted: int
    forwards: int
    version: int


def parse() -> argparse.Namespace:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="a checkpoint with MRP")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines, each with `messages` or `prompt`")
    parser.add_argument("--answers", type=int, default=5000)
    parser.add_argument("--window", type=int, default=500, help="answers of a row")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32, help="the most tokens of an answer")
    parser.add_argument("--pairs", type=int, default=8, help="windows with the trainer, and as many without")
    parser.add_argument("--pair-s", type=float, default=12.0, help="seconds of such a window")
    return parser.parse_args()


class Clients:
    """Clients in a closed loop. `answers`: what they got so far. `failed`: why they got none."""

    def __init__(self, client: httpx.AsyncClient, prompts: Sequence[dict[str, Any]], tokens: int) -> None:
        self._client, self._prompts, self._limit = client, prompts, {"max_new_tokens": tokens}
        self.answers: list[Answer] = []
        self.failed: Counter[str] = Counter()

    async def ask(self, numbers: Iterator[int], clients: int, knobs: dict[str, Any]) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self._ask(numbers, knobs))

    async def _ask(self, numbers: Iterator[int], knobs: dict[str, Any]) -> None:
        for number in numbers:
            prompt = number % len(self._prompts)
            response = await self._client.post(GENERATE, json={**self._prompts[prompt], **self._limit, **knobs})
            if response.status_code != httpx.codes.OK:
                self.failed[f"{response.status_code} {response.text[:100]}"] += 1
                continue
            body = response.json()
            stats = body["stats"]
            forwards = stats["forwards"]["denoise"] + stats["forwards"]["verify"]
            tokens = tuple(body["token_ids"])
            accepted, version = stats["drafts_accepted"], stats["mrp_version"]
            self.answers.append(Answer(prompt, time.monotonic(), tokens, accepted, forwards, version))


def row_of(answers: Sequence[Answer], began: float) -> dict[str, Any]:
    """What a window of answers shows."""
    by_version = defaultdict(list)
    for answer in answers:
        by_version[answer.version].append(answer)
    return {
        "accepted": _accepted(answers),
        "answers_per_s": round(len(answers) / (answers[-1].ended - began), 2),
        "by_version": {version: (len(part), _accepted(part)) for version, part in sorted(by_version.items())},
    }


def _accepted(answers: Sequence[Answer]) -> float:
    return round(sum(each.accepted for each in answers) / sum(each.forwards for each in answers), 3)


async def run(arguments: argparse.Namespace) -> int:
    prompts = read_prompts(arguments.prompts)
    with tempfile.TemporaryDirectory(prefix="mrp-") as folder:
        flags = ("--model", arguments.model, "--online-mrp-dir", folder)
        async with service(arguments, *flags) as running, client_of(running.url) as client:
            learning, numbers = Clients(client, prompts, arguments.tokens), itertools.count()
            rows = [row async for row in _windows(arguments, running, learning, numbers)]
            orders = [bool(pair % 2) for pair in range(arguments.pairs)]
            pairs = [await _pair(arguments, running, learning, numbers, reverse=reverse) for reverse in orders]
            static = Clients(client, prompts, arguments.tokens)
            prompt_numbers = sorted({answer.prompt for answer in learning.answers})
            await static.ask(iter(prompt_numbers), _STATIC_CLIENTS, {"mode": "static"})
    return conclude(learning, static, {"rows": rows, "pairs": pairs})


def conclude(learning: Clients, static: Clients, result: dict[str, Any]) -> int:
    """Reports. The exit status is 1 if an answer differs from `static`'s, or a request failed."""
    expected = {answer.prompt: answer.token_ids for answer in static.answers}
    differing = sum(expected.get(answer.prompt) != answer.token_ids for answer in learning.answers)
    failed = sorted(learning.failed + static.failed)
    ratios = [on / off for on, off in result["pairs"]]
    ratio = round(statistics.median(ratios), 3) if ratios else None
    counts = {"answers": len(learning.answers), "differing": differing, "median_ratio": ratio}
    return report("online", counts | result, [*([f"{differing} answers differ"] if differing else []), *failed])


async def _windows(
    arguments: argparse.Namespace, running: Running, learning: Clients, numbers: Iterator[int]
) -> AsyncIterator[dict[str, Any]]:
    for _ in range(0, arguments.answers, arguments.window):
        began, before = time.monotonic(), len(learning.answers)
        await learning.ask(itertools.islice(numbers, arguments.window), arguments.clients, _DRAFTS)
        if learning.failed:
            return
        row = row_of(learning.answers[before:], began) | {"trainer_mib": round(memory_mib(_trainer(running)))}
        say(f"  {len(learning.answers)} answers: {row}")
        yield row


async def _pair(
    arguments: argparse.Namespace, running: Running, learning: Clients, numbers: Iterator[int], *, reverse: bool
) -> tuple[float, float]:
    """Answers a second with the trainer, and while its process is stopped, which is first if `reverse`."""
    rates, trainer = dict[bool, float](), _trainer(running)
    for learns in (False, True) if reverse else (True, False):
        os.kill(trainer, signal.SIGCONT if learns else signal.SIGSTOP)
        try:
            began, before = time.monotonic(), len(learning.answers)
            until = itertools.takewhile(lambda _, end=began + arguments.pair_s: time.monotonic() < end, numbers)
            await learning.ask(until, arguments.clients, _DRAFTS)
            rates[learns] = round((len(learning.answers) - before) / (time.monotonic() - began), 2)
        finally:
            os.kill(trainer, signal.SIGCONT)
    say(f"  answers a second with and without the trainer: {rates[True]}, {rates[False]}")
    return rates[True], rates[False]


def _trainer(running: Running) -> int:
    (process,) = processes(running, "trainer")
    return process


def main() -> int:
    return asyncio.run(run(parse()))


if __name__ == "__main__":
    sys.exit(main())
