"""Updates under load: all replicas are replaced, and every request must get the answer of a quiet run.

    python -m loadtest.chaos.rolling --replicas 1 --updates 2
    python -m loadtest.chaos.rolling --url http://host:8000 --command "serve deploy changed.yaml" --wait 60

Without `--url`, the script deploys its service again under another model name, which replaces ingresses and replicas.
"""

import argparse
import asyncio
import os
import subprocess
import time

import httpx

from loadtest.chaos.steady import Tally, clients, longest_pause_s
from loadtest.harness import free_port, options, percentile, report, requests, say
from service.cli import cluster
from service.settings.settings import Settings

_BEFORE_S, _AFTER_S = 3.0, 5.0


async def _under_load(arguments: argparse.Namespace, http: httpx.AsyncClient) -> tuple[Tally, list[float]]:
    bodies = requests(30, arguments.seed, arguments.tokens)
    updates, tally = [], Tally()
    async with clients(http, bodies, arguments.clients, tally):
        await asyncio.sleep(_BEFORE_S)
        for number in range(1, arguments.updates + 1):
            began, before = time.monotonic(), await _model(http)
            await asyncio.to_thread(_update, arguments, number)
            updates.append(round(time.monotonic() - began, 1))
            say(f"update {number}: {before} -> {await _model(http)} after {updates[-1]} s")
        await asyncio.sleep(_AFTER_S)
    return tally, updates


async def _model(http: httpx.AsyncClient) -> str:
    return str((await http.get("/v1/models")).json()["data"][0]["id"])


def _update(arguments: argparse.Namespace, number: int) -> None:
    if arguments.url:
        subprocess.run(arguments.command, shell=True, check=True)  # noqa: S602 - the caller's own command
        time.sleep(arguments.wait)
    else:
        cluster.deploy(_settings(arguments, number), say)


def _settings(arguments: argparse.Namespace, number: int) -> Settings:
    name = f"update-{number}"
    os.environ["MRP_SERVE_TORCH_THREADS"] = "1"
    # of two ingresses, so that Serve's proxy listens, and an update does not move the port
    return Settings(port=arguments.port, num_replicas=arguments.replicas, served_model_name=name, api_server_count=2)


async def _measure(arguments: argparse.Namespace) -> int:
    headers = {"authorization": f"Bearer {arguments.key}"} if arguments.key else {}
    url = arguments.url or f"http://127.0.0.1:{arguments.port}"
    async with httpx.AsyncClient(base_url=url, timeout=120, headers=headers) as http:
        tally, updates = await _under_load(arguments, http)
    result = {
        "replicas": arguments.replicas,
        "update_seconds": updates,
        "answered": tally.answered,
        "failed": dict(tally.failed),
        "differing": len(tally.differing),
        "longest_answer": percentile(tally.totals, 1.0),
        "longest_pause_in_a_stream": percentile(tally.pauses, 1.0),
        "longest_without_any_answer": longest_pause_s(tally.ended),
    }
    return report("rolling", result, tally.broken)


def main() -> int:
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
    cluster.begin(_settings(arguments, 0), say)
    import ray  # after the variables that it reads when it is imported

    try:
        cluster.deploy(_settings(arguments, 0), say)
        return asyncio.run(_measure(arguments))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    raise SystemExit(main())
