"""From no replica to one and back, several times: the wait of the first request.

python -m loadtest.cluster.zero > dev/lab/results/cluster-zero.json
"""

import argparse
import sys
import time
from typing import Any

import httpx

from loadtest.cluster.nodes import deployed, replicas_by_state, wait_until
from loadtest.harness import percentile, report, say

SETTINGS = {"device": "cpu", "num_replicas": 0, "max_replicas": 2}
DELAYS = {"upscale_delay_s": 1.0, "downscale_delay_s": 5.0}
BODY = {"messages": [{"role": "user", "content": "Tom has 5 apples, gets 3, loses 2."}], "seed": 17}


def sleeps(http: httpx.Client) -> bool:
    health = http.get("/health")
    return health.status_code == 200 and health.json()["replicas_ready"] == 0 and not replicas_by_state()


def once(http: httpx.Client) -> dict[str, Any]:
    asleep_s = wait_until(lambda: sleeps(http), "asleep")
    routes = {path: http.get(path).status_code for path in ("/health", "/v1/models", "/metrics")}
    routes["a bad request"] = http.post("/generate", json={**BODY, "temperature": -1}).status_code
    still = sleeps(http)
    began = time.monotonic()
    first = http.post("/generate", json=BODY)
    cold_s = time.monotonic() - began
    began = time.monotonic()
    http.post("/generate", json=BODY)
    say(f"asleep after {asleep_s:.1f} s, answered after {cold_s:.1f} s, then after {time.monotonic() - began:.3f} s")
    return {
        "asleep_after_s": round(asleep_s, 1),
        "asleep": routes,
        "woken_by_them": not still,
        "cold_s": round(cold_s, 2),
        "warm_s": round(time.monotonic() - began, 3),
        "status": first.status_code,
        "answer": first.json().get("text") or first.text[:200],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=3)
    arguments = parser.parse_args()
    with deployed(SETTINGS, delays=DELAYS) as nodes, httpx.Client(base_url=nodes.url, timeout=120) as http:
        ready = lambda health: health.status_code == 200 and health.json()["replicas_ready"] > 0  # noqa: E731
        wait_until(lambda: ready(http.get("/health")), "deployed and awake")
        rows = [once(http) for _ in range(arguments.times)]
    cold = [row["cold_s"] for row in rows]
    broken = [f"status {row['status']}" for row in rows if row["status"] != 200]
    broken += ["it was woken by what should not"] if any(row["woken_by_them"] for row in rows) else []
    result = {"settings": SETTINGS, "median_cold_s": percentile(cold, 0.5), "longest_cold_s": max(cold), "rows": rows}
    return report("zero", result, broken)


if __name__ == "__main__":
    sys.exit(main())
