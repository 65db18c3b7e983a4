"""One fault of a single process under load: what clients get, how long nobody gets anything, and what stays behind.

    tests/loopback python -m loadtest.chaos.faults --kill engine
    tests/loopback python -m loadtest.chaos.faults --kill replica --times 20 --clients 64
    tests/loopback python -m loadtest.chaos.faults --stop ingress --seconds 60 --ingresses 2
    tests/loopback python -m loadtest.chaos.faults --kill driver --supervised
    tests/loopback python -m loadtest.chaos.faults --all --out faults.jsonl    # the whole table, resumable

The program is started as a user starts it, with two replicas. Clients know the answers from before the fault. A refused
connection is tried again a few times. `group` is the program's process group, `all` every process.
"""

import argparse
import asyncio
import itertools
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from loadtest.chaos import steady
from loadtest.chaos.program import POLL_S, REPLICAS, ProcessTree, Program
from loadtest.generator.protocol import BROKEN_OFF, Observation
from loadtest.harness import PARTS, ask, observation_of, percentile, ready, replicas_ready, report, requests, say

BODIES = 24
#: seconds: before the first fault, for the service to be well again, and that it must stay well
_BEFORE_S, _LONGEST_S, _WELL_S = 5.0, 60.0, 4.0
#: tries of a refused connection, and seconds between two
_TRIES, _AGAIN_S = 6, 1.0

SIGNALS = ("term", "int", "group_term", "all_term")
STOPPED = ("engine", "replica", "ingress", "controller", "raylet")
TABLE = (
    *(f"--kill {part}" for part in PARTS if part != "proxy"),
    *("--kill engine,engine", "--kill replica,replica", "--kill replica,controller", "--kill ingress,replica"),
    *("--kill ingress --ingresses 2", "--kill ingress,replica --ingresses 2"),
    *(f"--stop {part} --seconds {s}" for part in STOPPED for s in (5, 20, 60)),
    *(f"--signal {name}" for name in SIGNALS),
    *(f"--kill {part} --supervised" for part in ("driver", "gcs", "raylet", "agent", "rtenv")),
)
_OURS = re.compile(r"[a-z_]+: ")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kill", metavar="PARTS", help=f"comma-separated, of {', '.join(PARTS)}")
    parser.add_argument("--stop", metavar="PARTS", help="SIGSTOP, and SIGCONT after --seconds")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--signal", choices=SIGNALS, help="what a terminal or a supervisor sends")
    parser.add_argument("--times", type=int, default=1, help="the fault again, once the service is well")
    parser.add_argument("--ingresses", type=int, default=1)
    parser.add_argument("--supervised", action="store_true", help="start the program again when it ends")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96, help="tokens of every answer")
    parser.add_argument("--patience-s", type=float, default=30.0, help="how long a client waits for a whole answer")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--flags", default="", help="further flags of `mrp-serve serve`, in one text")
    parser.add_argument("--all", action="store_true", help="every fault of the table, twice")
    parser.add_argument("--out", type=Path, help="a file that gets the lines; with --all, its runs are not repeated")
    return parser.parse_args(words)


@dataclass
class Tally(steady.Tally):
    """What clients got, with the failures by their kind. A clear one has our own code of an error."""

    clear: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    unclear: Counter[str] = field(default_factory=Counter)

    def fail(self, kind: str, outcome: Observation) -> None:
        if outcome.error.startswith("ConnectError"):
            self.refused += 1
        elif outcome.status and outcome.error != BROKEN_OFF and _OURS.match(outcome.error):
            self.clear[f"{outcome.status} {kind} {outcome.error.partition(':')[0]}"] += 1
        else:
            self.unclear[f"{outcome.status} {kind} {outcome.error.partition(':')[0][:40]}"] += 1


async def patient_ask(client: httpx.AsyncClient, body: dict[str, Any], *, patience_s: float) -> Observation:
    for _ in range(_TRIES):
        try:
            async with asyncio.timeout(patience_s):
                outcome = await ask(client, body)
        except TimeoutError:
            outcome = observation_of(body)
            outcome.fail(f"no answer in {patience_s:g} s", time.monotonic())
            return outcome
        if not outcome.error.startswith("ConnectError"):
            break
        await asyncio.sleep(_AGAIN_S)
    return outcome


class Run:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments, self._tree, self._tally = arguments, ProcessTree(), Tally()
        self._program = Program(arguments, self._tree)
        self._fault = self._unwell = self._away = 0.0
        self._recoveries: list[float | None] = []

    async def result(self) -> dict[str, Any]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._arguments.clients)
        try:
            async with httpx.AsyncClient(base_url=self._program.url, timeout=None, limits=limits) as client:  # noqa: S113
                await ready(client, REPLICAS)
                bodies = requests(BODIES, self._arguments.seed, self._arguments.tokens)
                ask_patiently = partial(patient_ask, patience_s=self._arguments.patience_s)
                async with steady.clients(client, bodies, self._arguments.clients, self._tally, ask_patiently):
                    await self._disturb(client)
        finally:
            ending = await self._program.end()
        return self._result(ending)

    async def _disturb(self, client: httpx.AsyncClient) -> None:
        for _ in range(self._arguments.times):
            await self._watch(client, time.monotonic() + _BEFORE_S, settled=False)
            self._fault = self._unwell = time.monotonic()
            least_s = await self._inject()
            await self._watch(client, self._fault + least_s + _LONGEST_S, least_s)
            well = time.monotonic() - self._unwell >= _WELL_S
            self._recoveries.append(round(self._unwell - self._fault, 1) if well else None)

    async def _inject(self) -> float:
        """Makes the fault. Returns the seconds that it lasts."""
        self._tree.update()
        arguments, program = self._arguments, self._program.pid
        if arguments.signal:
            number = signal.SIGINT if arguments.signal == "int" else signal.SIGTERM
            for pid in self._tree.alive if arguments.signal == "all_term" else [program]:
                (os.killpg if arguments.signal == "group_term" else os.kill)(pid, number)
            return 0.0
        names = Counter((arguments.kill or arguments.stop).split(","))
        targets = [pid for part, count in names.items() for pid in self._tree.of(part)[:count]]
        if len(targets) != names.total():
            raise SystemExit(f"{arguments.kill or arguments.stop}: only {len(targets)} such processes")
        for pid in targets:
            os.kill(pid, signal.SIGKILL if arguments.kill else signal.SIGSTOP)
        if arguments.stop:
            asyncio.get_running_loop().call_later(arguments.seconds, _go_on, targets)
        return float(arguments.seconds) if arguments.stop else 0.0

    async def _watch(self, client: httpx.AsyncClient, until: float, least_s: float = 0.0, settled: bool = True) -> None:
        gone = None
        while (now := time.monotonic()) < until:
            healthy, complete = await self._well(client)
            self._away = self._away if healthy else now
            self._unwell = self._unwell if healthy and complete else now
            if settled and now > max(self._unwell, self._fault + least_s) + _WELL_S:
                return
            if self._program.ended():
                gone = gone or now + _WELL_S
                until = min(until, gone)
            await asyncio.sleep(POLL_S)

    async def _well(self, client: httpx.AsyncClient) -> tuple[bool, bool]:
        self._tree.update()
        counts = {"engine": REPLICAS, "replica": REPLICAS, "ingress": self._arguments.ingresses}
        running = all(self._tree.running(part) == count for part, count in counts.items())
        replicas = await replicas_ready(client) or 0
        return replicas > 0, running and replicas == REPLICAS

    def _result(self, ending: dict[str, Any]) -> dict[str, Any]:
        tally = self._tally
        return {
            "right": tally.answered - len(tally.differing),
            "different": len(tally.differing),
            "clear": dict(tally.clear),
            "refused": tally.refused,
            "unclear": sum(tally.unclear.values()),
            "how": dict(tally.unclear.most_common()),
            "longest_pause_s": steady.longest_pause_s(tally.arrivals + tally.ended),
            "longest_answer_s": percentile(tally.totals, 1.0),
            "back_s": max(0.0, round(self._away - self._fault, 1)),
            "full_again_s": self._recoveries[-1] if len(self._recoveries) == 1 else self._recoveries,
            **ending,
        }


def _go_on(targets: list[int]) -> None:
    for pid in targets:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def one_run(words: str, out: Path | None, repeat: int = 0) -> int:
    result = {"run": words, "repeat": repeat, **asyncio.run(Run(parse(words.split())).result())}
    broken = [f"{result['different']} answers differ"] if result["different"] else []
    broken += [f"{result['unclear']} requests failed unclearly"] if result["unclear"] else []
    if out:
        with out.open("a") as file:
            file.write(json.dumps(result) + "\n")
    return report("faults", result, broken)


def main() -> int:
    arguments = parse()
    if not arguments.all:
        words = [word for word in sys.argv[1:] if word != "--out" and word != str(arguments.out)]
        return one_run(" ".join(words), arguments.out)
    lines = arguments.out.read_text().splitlines() if arguments.out and arguments.out.exists() else []
    done = {(line["run"], line["repeat"]) for line in map(json.loads, lines)}
    broken = 0
    for repeat, words in itertools.product(range(2), TABLE):
        if (words, repeat) not in done:
            say(f"faults: {words}")
            broken |= one_run(words, arguments.out, repeat)
    return broken


if __name__ == "__main__":
    raise SystemExit(main())
