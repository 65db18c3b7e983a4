"""Hostile clients beside an honest one: its requests must not get slow, and no memory may stay taken.

    python -m loadtest.chaos.attacks --only wrong_bodies > attacks.jsonl

The honest client has a key of its own and sends a short request every half second, first alone, then beside each
attack of `hostile.py`. `wrong` states what an attack may not do. Prints a line of JSON for each attack. Run it as root:
then full disks are file systems of its own. The first streams make the ingress grow once, by 72 to 84 MiB, hostile or
not. So 100 streams of the honest client, all read to their end, come before the first measurement.
"""

import argparse
import asyncio
import ctypes
import hashlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import httpx

from loadtest.chaos.hostile import ATTACKS, Target
from loadtest.harness import Running, memory_mib, metrics, options, percentile, processes, say, service

_EVERY_S, _PATIENCE_S = 0.5, 30.0
_BODY = {"messages": [{"role": "user", "content": "Tom has 5 apples, gets 3, loses 2."}], "max_new_tokens": 16}
#: one of the streams of the honest client that come first, and their number
_STREAM, _NUM_STREAMS = _BODY | {"max_new_tokens": 128, "ignore_eos": True, "stream": True}, 100
_PARTS = ("ingress", "replica", "engine")
#: the most that a process may keep of an attack
_GROWTH_MIB = 64
#: the most replicas that an attack may make the autoscaler want
_MOST_WANTED = 100
#: CLONE_NEWNS of Linux
_NEW_MOUNTS = 0x20000


def parse() -> argparse.Namespace:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS), help="attacks")
    parser.add_argument("--quiet-s", type=float, default=8.0, help="seconds alone, before each attack")
    parser.add_argument("--seconds", type=float, default=20.0, help="the longest that an attack lasts")
    return parser.parse_args()


# --- the honest client -----------------------------------------------------------------------------


@dataclass
class HonestClient:
    """The honest client. `seconds`: of each request; one without an answer counts as long as it was waited for."""

    session: aiohttp.ClientSession
    url: str
    seconds: list[float] = field(default_factory=list)
    unanswered: int = 0

    async def ask(self, body: dict[str, Any] = _BODY) -> None:
        began = time.monotonic()
        try:
            headers = {"authorization": "Bearer bob"}
            async with self.session.post(f"{self.url}/generate", json=body, headers=headers) as response:
                await response.read()
                self.unanswered += response.status != 200
        except (aiohttp.ClientError, TimeoutError):
            self.unanswered += 1
        self.seconds.append(time.monotonic() - began)

    async def for_seconds(self, seconds: float) -> None:
        tasks, ends = [], time.monotonic() + seconds
        while time.monotonic() < ends:
            tasks.append(asyncio.create_task(self.ask()))
            await asyncio.sleep(_EVERY_S)
        await asyncio.gather(*tasks)


async def watch(url: str, seconds: float) -> HonestClient:
    timeout = aiohttp.ClientTimeout(total=_PATIENCE_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(force_close=True)) as session:
        client = HonestClient(session, url)
        await client.for_seconds(seconds)
    return client


async def warm_up(url: str) -> None:
    """Many streams of the honest client at once. RuntimeError if the service does not answer all of them."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        honest = HonestClient(session, url)
        await asyncio.gather(*(honest.ask(_STREAM) for _ in range(_NUM_STREAMS)))
    if honest.unanswered:
        raise RuntimeError(f"{honest.unanswered} of {_NUM_STREAMS} streams were not answered before the first attack")


# --- an attack -------------------------------------------------------------------------------------


def _attack(name: str, target: Target, result: Connection) -> None:
    ends: Counter[str] = Counter()

    async def attack() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(target.seconds):
                await ATTACKS[name](target, ends)

    asyncio.run(attack())
    result.send(dict(ends))


async def beside(name: str, target: Target, url: str) -> tuple[HonestClient, dict[str, int]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_attack, args=(name, target, theirs))
    process.start()
    await asyncio.sleep(2)  # until it has begun
    watching = asyncio.create_task(watch(url, target.seconds))
    await asyncio.to_thread(process.join, target.seconds + 30)
    process.kill()
    return await watching, ours.recv() if ours.poll() else {}


def sizes(running: Running) -> dict[str, tuple[list[int], float]]:
    parts = {part: processes(running, part) for part in _PARTS}
    return {part: (ids, sum(map(memory_mib, ids))) for part, ids in parts.items()}


async def measure(name: str, running: Running, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    quiet, before, wanted = await watch(running.url, arguments.quiet_s), sizes(running), await replicas(running.url)
    url = httpx.URL(running.url)
    target = Target(url.host, url.port or 80, before["ingress"][0][0], folder, arguments.seconds)
    attacked, ends = await beside(name, target, running.url)
    recovery = await recovered(running.url)
    await asyncio.sleep(5)
    after = sizes(running)
    return {
        "attack": name,
        "ends": ends,
        "quiet_p50_s": percentile(quiet.seconds, 0.5),
        "attacked_p50_s": percentile(attacked.seconds, 0.5),
        "attacked_longest_s": percentile(attacked.seconds, 1.0),
        "asked": len(attacked.seconds),
        "unanswered": attacked.unanswered,
        "recovery_s": recovery,
        "grown_mib": {part: round(after[part][1] - before[part][1]) for part in _PARTS},
        "lost": [part for part in _PARTS if not set(before[part][0]) <= set(after[part][0])],
        "replicas_wanted": [wanted, await replicas(running.url)],
    }


async def replicas(url: str) -> float:
    async with httpx.AsyncClient(base_url=url) as client:
        return round((await metrics(client)).get("replicas_wanted", 0.0), 1)


async def recovered(url: str, limit_s: float = 120) -> float | None:
    """Seconds until a request is answered within a second. None: not within the limit."""
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        seen = await watch(url, 0.1)
        if not seen.unanswered and seen.seconds[0] < 1:
            return round(time.monotonic() - began - seen.seconds[0], 1)
    return None


def wrong(row: dict[str, Any]) -> list[str]:
    ratio, more = row["attacked_p50_s"] / row["quiet_p50_s"], row["replicas_wanted"][1] - row["replicas_wanted"][0]
    checks = {
        f"median {ratio:.1f} times": ratio > 2,
        f"{row['unanswered']} unanswered": row["unanswered"] > 0,
        f"{row['lost']} lost": bool(row["lost"]),
        "not recovered": row["recovery_s"] is None,
        f"{more:.0f} more replicas wanted": more > _MOST_WANTED,
        f"grown by {row['grown_mib']} MiB": max(row["grown_mib"].values()) > _GROWTH_MIB,
    }
    return [what for what, broken in checks.items() if broken]


# --- the runner ------------------------------------------------------------------------------------


@contextmanager
def file_systems() -> Iterator[Path]:
    """A small file system for logs and Ray's session, and another for shared memory, that only this process sees."""
    folder = Path(tempfile.mkdtemp(prefix="a"))
    if os.geteuid() == 0:
        if ctypes.CDLL(None, use_errno=True).unshare(_NEW_MOUNTS):
            raise OSError(ctypes.get_errno(), "no mount namespace")
        small = ("-t", "tmpfs", "-o", "size=512m", "tmpfs")
        for words in (("--make-rprivate", "/"), (*small, folder), (*small, "/dev/shm")):  # noqa: S108
            subprocess.run(("mount", *words), check=True)  # noqa: S603, S607
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keys(folder: Path) -> Path:
    limits = {"alice": "", "bob": "", "limited": ", requests_per_minute: 600, tokens_per_minute: 6000"}
    path = folder / "keys.yaml"
    lines = [f"- {{name: {k}, sha256: {hashlib.sha256(k.encode()).hexdigest()}{limit}}}" for k, limit in limits.items()]
    path.write_text("\n".join(lines))
    path.chmod(0o600)
    return path


async def run(arguments: argparse.Namespace, folder: Path) -> int:
    names = [name for name in arguments.only if os.geteuid() == 0 or not name.startswith("full")]
    flags = ("--api-keys-file", keys(folder))
    environment = {"MRP_SERVE_TORCH_THREADS": "1", "TMPDIR": str(folder), "RAY_TMPDIR": str(folder)}
    broken = 0
    async with service(arguments, *flags, environment=environment) as running:
        await warm_up(running.url)
        for name in names:
            row = await measure(name, running, folder, arguments)
            row["broken"] = wrong(row)
            broken += bool(row["broken"])
            say(f"{name:<20} p50 {row['quiet_p50_s']:.3f} -> {row['attacked_p50_s']:.3f} s  {row['broken'] or 'holds'}")
            print(json.dumps(row), flush=True)
    return 1 if broken else 0


def main() -> int:
    with file_systems() as folder:
        return asyncio.run(run(parse(), folder))


if __name__ == "__main__":
    sys.exit(main())
