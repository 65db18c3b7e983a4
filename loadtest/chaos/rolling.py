"""Updates under load: every request must be answered in full while all replicas are replaced.

    python -m loadtest.chaos.rolling --replicas 1 --updates 2
    python -m loadtest.chaos.rolling --url http://host:8000 --command "serve deploy changed.yaml"

Without `--url` it starts a service in this process's cluster and deploys it again under another name; with it,
`--command` is what updates the service. Streams and whole answers in turn, by a fixed number of clients. Exits with
1 if a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sys
import time
from dataclasses import asdict, dataclass, field

import httpx

from service.cli import cluster
from service.settings import Settings

_BEFORE_S, _AFTER_S = 3.0, 5.0


@dataclass
class Tally:
    """What became of the requests; pauses in seconds."""

    requests: int = 0
    names: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    longest_answer: float = 0.0
    longest_pause_in_a_stream: float = 0.0
    longest_without_any_answer: float = 0.0
    last: float = field(default_factory=time.monotonic)

    def answered(self, began: float, name: str) -> None:
        """Counts an answer."""
        now = time.monotonic()
        self.names[name] = self.names.get(name, 0) + 1
        self.longest_answer = max(self.longest_answer, now - began)
        self.longest_without_any_answer = max(self.longest_without_any_answer, now - self.last)
        self.last = now


class Load:
    """A fixed number of clients, each with one request at a time, until it is stopped."""

    def __init__(self, url: str, clients: int, key: str | None) -> None:
        self.tally, self._stopped = Tally(), asyncio.Event()
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=clients)
        self._http = httpx.AsyncClient(base_url=url, timeout=120, headers=headers, limits=limits)
        self._tasks = [asyncio.create_task(self._client(random.Random(number))) for number in range(clients)]

    async def stop(self) -> Tally:
        """Waits for the last answers."""
        self._stopped.set()
        await asyncio.gather(*self._tasks)
        await self._http.aclose()
        return self.tally

    async def _client(self, chance: random.Random) -> None:
        while not self._stopped.is_set():
            tokens = chance.choice((16, 64, 200))
            request = {"prompt": "Tom has 5 apples.", "max_new_tokens": tokens, "mode": "static", "ignore_eos": True}
            began = time.monotonic()
            self.tally.requests += 1
            try:
                name = await (self._stream if chance.random() < 0.5 else self._whole)(request)
                self.tally.answered(began, name)
            except Exception as error:  # noqa: BLE001 - whatever went wrong is what is looked for
                self.tally.failed.append(f"{time.monotonic() - began:.1f} s: {type(error).__name__}: {error}"[:300])

    async def _whole(self, request: dict[str, object]) -> str:
        response = await self._http.post("/generate", json=request)
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code} {response.text}")
        return _complete(response.json(), request)

    async def _stream(self, request: dict[str, object]) -> str:
        async with self._http.stream("POST", "/generate", json={**request, "stream": True}) as response:
            if response.status_code != 200:
                raise RuntimeError(f"{response.status_code} {(await response.aread()).decode()}")
            seen, event, tokens = time.monotonic(), "", 0
            async for line in response.aiter_lines():
                now = time.monotonic()
                self.tally.longest_pause_in_a_stream = max(self.tally.longest_pause_in_a_stream, now - seen)
                seen = now
                if line.startswith("event: "):
                    event = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    data = json.loads(line.removeprefix("data: "))
                    if event == "block":
                        tokens += len(data["token_ids"])
        if event != "done":
            raise RuntimeError(f"the stream ended with {event or 'nothing'}: {data if event else ''}")
        if tokens != request["max_new_tokens"]:
            raise RuntimeError(f"{tokens} tokens came, {request['max_new_tokens']} were asked for")
        return _complete(data, request)


def _complete(answer: dict[str, object], request: dict[str, object]) -> str:
    usage = answer["usage"]
    if usage["completion_tokens"] != request["max_new_tokens"]:
        raise RuntimeError(f"{usage['completion_tokens']} tokens came, {request['max_new_tokens']} were asked for")
    return str(answer["model"])


async def _update(arguments: argparse.Namespace, number: int) -> None:
    if arguments.command is None:
        await asyncio.to_thread(cluster.deploy, _settings(arguments, f"update-{number}"))
        return
    process = await asyncio.create_subprocess_shell(arguments.command)
    if await process.wait():
        raise SystemExit(f"{arguments.command} ended with {process.returncode}")
    await asyncio.sleep(arguments.seconds)


def _settings(arguments: argparse.Namespace, name: str) -> Settings:
    return Settings(port=arguments.port, num_replicas=arguments.replicas, served_model_name=name, torch_threads=1)


async def _measure(arguments: argparse.Namespace) -> Tally:
    load = Load(arguments.url or f"http://127.0.0.1:{arguments.port}", arguments.clients, arguments.key)
    await asyncio.sleep(_BEFORE_S)
    for number in range(1, arguments.updates + 1):
        began = time.monotonic()
        await _update(arguments, number)
        print(f"update {number}: {time.monotonic() - began:.1f} s", file=sys.stderr)
    await asyncio.sleep(_AFTER_S)
    return await load.stop()


def main() -> None:
    """Prints the counts as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a service that runs already; wants --command")
    parser.add_argument("--command", help="updates that service")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long that update takes")
    parser.add_argument("--key", help="its API key")
    parser.add_argument("--replicas", type=int, default=1, help="of a service of its own")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--updates", type=int, default=1)
    arguments = parser.parse_args()
    if (arguments.url is None) != (arguments.command is None):
        parser.error("--url and --command go together")
    tally = _run(arguments)
    print(json.dumps({key: value for key, value in asdict(tally).items() if key != "last"}))
    raise SystemExit(bool(tally.failed))


def _run(arguments: argparse.Namespace) -> Tally:
    if arguments.url:
        return asyncio.run(_measure(arguments))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        arguments.port = probe.getsockname()[1]
    settings = _settings(arguments, "update-0")
    try:
        cluster.start(settings)
        cluster.deploy(settings)
        return asyncio.run(_measure(arguments))
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
