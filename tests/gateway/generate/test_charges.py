"""The charge to a key for requests that are answered, fail, or are aborted, over HTTP. Its bucket never refills."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from service.admission.controller import AdmissionController
from service.errors import (
    ConstraintFailed,
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    NotReady,
    OutOfMemory,
    ReplicaLost,
    ReplicaStopping,
)
from service.gateway import ingress as ingress_module
from service.gateway.ingress import Ingress
from service.messages.wire import Chunk, Ending, Failure, ReplicaRequest
from service.settings.settings import Settings
from tests.clock import Clock
from tests.gateway.doubles import STATS, AsgiClient, Scripted
from tests.gateway.generate.helpers import GENERATE, body
from tests.gateway.helpers import client

KEY = {"Authorization": "Bearer secret"}
COMPLETIONS = "/v1/completions"
MOST = 1000
REQUESTS = {GENERATE: body(), COMPLETIONS: {"model": "golden", "prompt": [1], "max_tokens": 16}}
SEVERAL = {"model": "golden", "prompt": [1], "n": 3, "max_tokens": 16, "seed": 0, "temperature": 1.0}
#: what a request is charged before anything is known of it: its prompt, and what it asks for
ESTIMATES = {GENERATE: 8 + 16, COMPLETIONS: 1 + 16}
BLOCK = Chunk(0, "a", (10, 11), STATS)
ENDING = Ending("length", 5, 4, STATS)
USED = 5 + 4
LOST = ReplicaLost("gone", retry_after=1.0)
ERRORS = [
    LOST,
    ReplicaStopping("stops", retry_after=1.0),
    NotReady("there is none"),
    Failure(EngineFailed("broken")),
    Failure(OutOfMemory("full")),
    RuntimeError("a bug"),
]


class Till:
    """An ingress over a backend, and a key of `MOST` tokens a minute."""

    def __init__(self, backend: Scripted, folder: Path) -> None:
        path = folder / "keys.yaml"
        digest = hashlib.sha256(b"secret").hexdigest()
        path.write_text(yaml.safe_dump([{"name": "a", "sha256": digest, "tokens_per_minute": MOST}]), "utf-8")
        self.ingress = Ingress("i0", Settings(api_keys_file=path, max_failovers=0), backend)
        self.app = self.ingress.app(answers_request_id=True)
        self.http = client(self.app, **KEY)

    @property
    def paid(self) -> float:
        return MOST - self.ingress._admission._limits._tokens["a"].left


@pytest.fixture
def till(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """till(backend) -> its ingress."""
    clock = Clock()
    monkeypatch.setattr(ingress_module, "AdmissionController", partial(AdmissionController, clock=clock))
    return lambda backend: Till(backend, tmp_path)


class Choices(Scripted):
    """The answer of every seed has items of its own; after the item None of one of them the next may begin."""

    def __init__(self, *scripts: list[Any]) -> None:
        super().__init__()
        self.scripts = scripts
        self.turns = [asyncio.Event() for _ in scripts]
        self.turns[0].set()

    async def stream(self, request: ReplicaRequest) -> AsyncGenerator[Chunk | Ending | Failure]:
        number = request.sampling.seed
        await self.turns[number].wait()
        for item in self.scripts[number]:
            if item is None:
                self.turns[number + 1].set()
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
        await asyncio.Event().wait()


class Counting(Scripted):
    """A backend whose prompts have 299 tokens."""

    async def count(self, request: ReplicaRequest) -> int:
        return 299


async def test_an_answer_costs_what_it_used(till: Any) -> None:
    for path, request in REQUESTS.items():
        for stream in (False, True):
            asked = till(Scripted(BLOCK, ENDING))
            async with asked.http as http:
                assert (await http.post(path, json=request | {"stream": stream})).status_code == 200
            assert asked.paid == USED


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(getattr(error, "error", error)).__name__)
@pytest.mark.parametrize("path", [GENERATE, COMPLETIONS])
class TestFailures:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_before_the_first_block_nothing_is_paid(self, till: Any, path: str, error: Any, stream: bool) -> None:
        asked = till(Scripted(error))
        async with asked.http as http:
            assert (await http.post(path, json=REQUESTS[path] | {"stream": stream})).status_code >= 500
        assert asked.paid == 0

    async def test_in_the_midst_what_was_streamed_is_paid(self, till: Any, path: str, error: Any) -> None:
        asked = till(Scripted(BLOCK, error))
        async with asked.http as http:
            response = await http.post(path, json=REQUESTS[path] | {"stream": True})
        assert response.status_code == 200
        assert "error" in response.text
        assert asked.paid == len(BLOCK.token_ids)

    async def test_of_a_whole_answer_nothing_was_got(self, till: Any, path: str, error: Any) -> None:
        asked = till(Scripted(BLOCK, error))
        async with asked.http as http:
            assert (await http.post(path, json=REQUESTS[path])).status_code >= 500
        assert asked.paid == 0


class TestOwnLimits:
    """The client's own limits end the request. It pays as if it had left."""

    @pytest.mark.parametrize("error", [DeadlineExceeded("late"), ConstraintFailed("no token is allowed")])
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("path", [GENERATE, COMPLETIONS])
    async def test_the_estimate_stays(self, till: Any, path: str, stream: bool, error: Any) -> None:
        asked = till(Scripted(BLOCK, Failure(error)))
        async with asked.http as http:
            await http.post(path, json=REQUESTS[path] | {"stream": stream})
        assert asked.paid == ESTIMATES[path]

    async def test_the_prompt_is_paid_with_the_first_block(self, till: Any) -> None:
        """Whatever the estimate was. The client leaves then."""
        asked = till(Scripted(replace(BLOCK, prompt_tokens=700), hangs=True))
        request = body(stream=True, prompt_token_ids=None, prompt="w1 w2")
        await AsgiClient(request, headers=KEY).request(asked.app)
        assert asked.paid == 700 + len(BLOCK.token_ids)

    async def test_a_refused_prompt_costs_itself(self, till: Any) -> None:
        asked = till(Scripted(Failure(InvalidRequest("too long"))))
        async with asked.http as http:
            assert (await http.post(GENERATE, json=body())).status_code == 422
        assert asked.paid == 8

    async def test_of_several_answers_those_that_ended_are_paid(self, till: Any) -> None:
        """Else one answer that is too late makes all others free."""
        asked = till(Choices([None, ENDING], [BLOCK, None, DeadlineExceeded("late")], [BLOCK]))
        async with asked.http as http:
            assert (await http.post(COMPLETIONS, json=SEVERAL)).status_code == 504
        assert asked.paid == USED + 2 * (1 + 16 / 4)  # the first used a fourth of what it asked for, so others may, too

    async def test_counting_costs_a_tenth(self, till: Any) -> None:
        asked = till(Counting())
        async with asked.http as http:
            message = {"role": "user", "content": "How long?"}
            answer = await http.post("/v1/messages/count_tokens", json={"model": "golden", "messages": [message]})
        assert answer.json() == {"input_tokens": 299}
        assert asked.paid == 30


async def test_a_key_that_was_never_answered_is_not_limited(till: Any) -> None:
    asked = till(Scripted(ReplicaLost("gone")))
    async with asked.http as http:
        codes = {(await http.post(GENERATE, json=body(max_new_tokens=240))).status_code for _ in range(5)}
    assert codes == {503}


class TestSeveralAnswers:
    """One of them fails, so the request fails."""

    async def test_whole_ones(self, till: Any) -> None:
        """The first has ended, the third is being decoded."""
        asked = till(Choices([None, ENDING], [BLOCK, None, LOST], [BLOCK]))
        async with asked.http as http:
            assert (await http.post(COMPLETIONS, json=SEVERAL)).status_code == 503
        assert asked.paid == 0

    async def test_streams(self, till: Any) -> None:
        asked = till(Choices([BLOCK, ENDING, None], [BLOCK, LOST], [BLOCK]))
        async with asked.http as http:
            response = await http.post(COMPLETIONS, json=SEVERAL | {"stream": True})
        assert "replica_lost" in response.text
        assert asked.paid == USED + len(BLOCK.token_ids)


class TestCut:
    """A server that stops ends answers itself."""

    @pytest.mark.parametrize("path", [GENERATE, COMPLETIONS])
    @pytest.mark.parametrize("stream", [False, True])
    async def test_what_was_streamed_is_paid(self, till: Any, path: str, stream: bool) -> None:
        backend = Scripted(BLOCK, hangs=True)
        asked = till(backend)
        async with asked.http as http:
            request = REQUESTS[path] | {"stream": stream}
            task = asyncio.ensure_future(http.post(path, json=request))
            await backend.all_hang.wait()
            assert asked.paid == ESTIMATES[path]
            asked.ingress.draining.abort()
            assert "cut: " in (await task).text
        assert asked.paid == (len(BLOCK.token_ids) if stream else 0)


class TestLeaving:
    """The client aborted the request. It pays the estimate, since the work was done for it."""

    async def test_a_whole_answer(self, till: Any) -> None:
        backend = Scripted(BLOCK, hangs=True)
        asked = till(backend)
        async with asked.http as http:
            task = asyncio.ensure_future(http.post(GENERATE, json=body()))
            await backend.all_hang.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert backend.live == 0
        assert asked.paid == ESTIMATES[GENERATE]

    @pytest.mark.parametrize("version", ["2.3", "2.4"])
    async def test_a_stream(self, till: Any, version: str) -> None:
        asked = till(backend := Scripted(BLOCK, BLOCK, hangs=True))
        await AsgiClient(body(stream=True), version, headers=KEY).request(asked.app)
        assert backend.live == 0
        assert asked.paid == ESTIMATES[GENERATE]

    async def test_a_stream_that_was_longer_than_estimated(self, till: Any) -> None:
        """Otherwise a client that leaves before the last block would pay less than one that stays."""
        asked = till(Scripted(BLOCK, BLOCK, BLOCK, hangs=True))
        await AsgiClient(body(stream=True, max_new_tokens=1), headers=KEY).request(asked.app)
        assert asked.paid >= len(BLOCK.token_ids)

    async def test_several_answers(self, till: Any) -> None:
        backend = Scripted(BLOCK, hangs=True)
        backend.waiting_for = 3
        asked = till(backend)
        async with asked.http as http:
            task = asyncio.ensure_future(http.post(COMPLETIONS, json=SEVERAL))
            await backend.all_hang.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert asked.paid == 3 * ESTIMATES[COMPLETIONS]
