"""Tests the behaviour of an OpenAI-compatible server: seeds, batches, health under load, streams, clients that leave,
SIGTERM. It does not compare speeds, since the servers run different models.

It starts the server itself (`--command`), to test how it ends. The questions are in `behaviour.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from loadtest.comparison.behaviour import PROMPTS, Server, companions, health_latency, leavers, seeds, stream
from loadtest.harness import say

_STOP_S = 45


async def sigterm(server: Server, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """SIGTERM with four requests in progress: their answers, the answer to a new request, and the server's end."""
    flying = [asyncio.create_task(server.ask(prompt)) for prompt in PROMPTS]
    await asyncio.sleep(0.3)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.1)
    late = asyncio.create_task(server.ask(PROMPTS[0]))
    answers = await asyncio.gather(*flying)
    told = await late
    try:
        code: int | str = await asyncio.to_thread(process.wait, _STOP_S)
    except subprocess.TimeoutExpired:
        code = f"did not end within {_STOP_S} s"
    return {
        "in_flight_answered": f"{sum(not answer.startswith('<') for answer in answers)} of {len(answers)}",
        "new_request": told if told.startswith("<") else "answered",
        "exit_status": code,
        "ended_after_s": round(time.monotonic() - began, 1),
    }


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs all checks against one server."""
    began = time.monotonic()
    process = subprocess.Popen(shlex.split(arguments.command), stdout=sys.stderr)  # noqa: S603 - the user's own words
    try:
        async with httpx.AsyncClient(base_url=arguments.url, timeout=300) as client:
            card = await _ready(client, process, arguments.health)
            server = Server(client, card, json.loads(arguments.more), arguments.tokens, arguments.health)
            result: dict[str, Any] = {"ready_after_s": round(time.monotonic() - began, 1)}
            await server.ask(PROMPTS[0])
            for check in (seeds, companions, health_latency, stream, leavers):
                result |= await check(server)
            return result | await sigterm(server, process)
    finally:
        if process.poll() is None:
            process.kill()


async def _ready(client: httpx.AsyncClient, process: subprocess.Popen[bytes], health: str) -> str:
    """Waits for the health route. Returns the name of the first model."""
    for _ in range(900):
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode}")
        try:
            if (await client.get(health, timeout=5)).status_code == 200:
                return str((await client.get("/v1/models")).json()["data"][0]["id"])
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.2)
    raise SystemExit("the server was not ready within three minutes")


def main() -> None:
    """Prints a table to stderr, one line of JSON to stdout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", required=True, help="the command that starts the server")
    parser.add_argument("--url", required=True)
    parser.add_argument("--name", required=True, help="the server and its version, for the result")
    parser.add_argument("--health", default="/health")
    parser.add_argument("--more", default="{}", help="JSON of further fields of every request")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    result = {"server": arguments.name, "more": arguments.more, **asyncio.run(run(arguments))}
    say("\n".join(f"  {key:<32}{value}" for key, value in result.items()))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
