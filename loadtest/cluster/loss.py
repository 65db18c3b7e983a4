"""A node is killed under load: one with a replica of the model, or the one with the only ingress.

    python -m loadtest.cluster.loss --of ingress > dev/lab/results/cluster-loss-ingress.json

If a replica is lost, no request may be lost. If the only ingress is lost, the script reports how many and for how long.
"""

import argparse
import asyncio
import sys
import time
from typing import Any

import httpx

from loadtest.chaos.steady import Tally, clients
from loadtest.cluster.nodes import Nodes, deployed, replicas_by_state
from loadtest.harness import client_of, metrics, percentile, ready, replicas_ready, report, requests, say

SETTINGS = {"device": "cpu", "max_num_seqs": 8, "num_replicas": 2, "max_replicas": 3}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--of", choices=("replica", "ingress"), default="replica")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--before-s", type=float, default=8.0)
    parser.add_argument("--after-s", type=float, default=15.0, help="load once all replicas are back")
    parser.add_argument("--seed", type=int, default=17)
    return parser.parse_args()


def node_to_kill(nodes: Nodes, of: str) -> Any:
    ingress, model = nodes.having("ingress"), nodes.having("replica")
    chosen = ingress if of == "ingress" else [node for node in model if node not in ingress]
    chosen = [node for node in chosen if node is not nodes.nodes[0]]
    if not chosen:
        raise SystemExit("no node but the head has what is to be killed")
    return chosen[0]


async def run(nodes: Nodes, arguments: argparse.Namespace) -> tuple[Tally, float, dict[str, float]]:
    async with client_of(nodes.url) as http:
        await ready(http, 2)
        bodies = requests(48, arguments.seed, arguments.tokens)
        tally = Tally()
        async with clients(http, bodies, arguments.concurrency, tally):
            await asyncio.sleep(arguments.before_s)
            node, began = node_to_kill(nodes, arguments.of), time.monotonic()
            before = tally.answered
            await asyncio.to_thread(nodes.kill, node)
            say(f"the node was killed; {before} answers before")
            await _back(http)
            back_s = time.monotonic() - began
            say(f"two replicas behind an ingress again after {back_s:.1f} s")
            await asyncio.sleep(arguments.after_s)
        return tally, back_s, await metrics(http)


async def _back(http: httpx.AsyncClient) -> None:
    for _ in range(100):  # waits until the loss is noticed, but not for ever: it may already be repaired
        if (await asyncio.to_thread(replicas_by_state)).get("RUNNING", 0) < 2 or await replicas_ready(http) is None:
            break
        await asyncio.sleep(0.1)
    await ready(http, 2)


def conclude(arguments: argparse.Namespace, tally: Tally, back_s: float, totals: dict[str, float]) -> int:
    failed = sum(tally.failed.values())
    result = {
        "killed": f"the node of {'the only ingress' if arguments.of == 'ingress' else 'a replica'}",
        "settings": SETTINGS,
        "concurrency": arguments.concurrency,
        "answered": tally.answered,
        "failed": failed,
        "failures": dict(tally.failed.most_common(8)),
        "differing": len(tally.differing),
        "all_back_after_s": round(back_s, 1),
        "longest_pause_s": percentile(tally.pauses, 1.0),
        "longest_answer_s": percentile(tally.totals, 1.0),
        **{name: value for name, value in totals.items() if "failover" in name},
    }
    broken = [f"{failed} requests failed"] if failed and arguments.of == "replica" else []
    broken += [f"{len(tally.differing)} answers differ"] if tally.differing else []
    return report("loss", result, broken)


def main() -> int:
    arguments = parse()
    with deployed(SETTINGS, ingress_on="worker" if arguments.of == "ingress" else "head") as nodes:
        outcome = asyncio.run(run(nodes, arguments))
    return conclude(arguments, *outcome)


if __name__ == "__main__":
    sys.exit(main())
