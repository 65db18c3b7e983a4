"""The engine without a service, for comparison. It takes the bodies of POST /generate."""

import http.client
import itertools
import json
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx

from loadtest.generator.workload import Json
from service.decode.modes import KNOBS
from service.decode.registry import make_mode
from service.demo import CHECKPOINT
from service.engine import EngineConfig, GenerationRequest, SamplingParams
from service.library import TextModel

#: seconds before a measurement at saturation
WARM_S = 2.0


class Alone:
    """The engine and the tokenizer of a checkpoint, the demo's by default."""

    def __init__(self, model: str | None, threads: int, max_running: int) -> None:
        loaded = TextModel.load(model or CHECKPOINT, EngineConfig(max_running=max_running), threads=threads)
        self._codec, self._engine = loaded.codec, loaded.engine
        self._ends = frozenset(loaded.checkpoint.config.eos_token_ids)
        self.block_size = loaded.checkpoint.config.block_size

    def tokens_per_s(self, bodies: Iterator[Json], together: int, seconds: float) -> float:
        """Tokens per second with `together` requests at once, after a warm-up.

        The window begins with the end of the warm-up's last step. It has at least one block, however long a step is.
        """
        names = itertools.count()
        steps = self._steps(bodies, together, names)
        _produced(steps, WARM_S)
        began = time.perf_counter()
        tokens = _produced(steps, seconds)
        measured = time.perf_counter() - began
        for name in range(next(names)):
            self._engine.abort(str(name))
        return tokens / measured

    def _steps(self, bodies: Iterator[Json], together: int, names: Iterator[int]) -> Iterator[int]:
        for _ in range(together):
            self._engine.submit(self._request(next(bodies), next(names)))
        while True:
            tokens = 0
            for event in self._engine.step():
                tokens += len(event.token_ids)
                if event.finish_reason:
                    self._engine.submit(self._request(next(bodies), next(names)))
            yield tokens

    def seconds(self, body: Json) -> float:
        began = time.perf_counter()
        [completion] = self._engine.generate([self._request(body, 0)])
        self._codec.decode(completion.token_ids)
        return time.perf_counter() - began

    def _request(self, body: Json, name: int) -> GenerationRequest:
        return GenerationRequest(
            str(name),
            tuple(self._codec.encode_chat(body["messages"])),
            make_mode(body["mode"], {knob: body[knob] for knob in KNOBS if knob in body}),
            SamplingParams(body["temperature"], seed=body["seed"]),
            body["max_new_tokens"],
            frozenset() if body.get("ignore_eos") else self._ends,
        )


def _produced(steps: Iterator[int], seconds: float) -> int:
    """The tokens of the steps in `seconds`, and of the steps after that until there is a token."""
    tokens, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end or not tokens:
        tokens += next(steps)
    return tokens


@dataclass(frozen=True)
class Lone:
    """The seconds of a request at the engine alone, over HTTP, and by the service's own count."""

    alone: float
    over_http: float
    inside: float


def lone(alone: Alone, url: str, bodies: Sequence[Json]) -> list[Lone]:
    """Sends each body to both in turn, over one connection. The first requests are the warm-up."""
    address, singles = httpx.URL(url), []
    connection = http.client.HTTPConnection(address.host, address.port, timeout=120)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small packets are sent at once
    for body in bodies:
        engine, content = alone.seconds(body), json.dumps(body)
        began = time.perf_counter()
        connection.request("POST", "/generate", content, {"Content-Type": "application/json"})
        answer = connection.getresponse().read()
        seconds = time.perf_counter() - began
        singles.append(Lone(engine, seconds, json.loads(answer)["stats"]["total_ms"] / 1000))
    connection.close()
    return singles[len(singles) // 10 :]
