"""The charge to a key for requests that are answered, fail, or are aborted, over HTTP. Its bucket never refills."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

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
from service.gateway.deps import IngressDeps
from service.gateway.ingress import Ingress
from service.messages.wire import Chunk, Encoded, Ending, Failure, ReplicaRequest
from service.settings.settings import Settings
from tests.clock import Clock
from tests.gateway.doubles import STATS, AsgiClient, Scripted
from tests.gateway.generate.helpers import GENERATE, body
from tests.gateway.helpers import client, keys_file

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


class MeteredService:
    """An ingress over a backend, and a key of `MOST` tokens a minute."""

    def __init__(self, backend: Scripted, folder: Path) -> None:
        path = keys_file(folder, secret={"tokens_per_minute": MOST})
        self.ingress = Ingress("i0", Settings(api_keys_file=path, max_failovers=0), backend, IngressDeps(clock=Clock()))
        self.app = self.ingress.app(answers_request_id=True)
        self.http = client(self.app, **KEY)

    @property
    def charged(self) -> float:
        return MOST - self.ingress.admission.limits._buckets["secret", "tokens"].left


Meter = Callable[[Scripted], MeteredService]


@pytest.fixture
def meter(tmp_path: Path) -> Meter:
    """meter(backend) -> its service. The bucket of the key never refills."""
    return lambda backend: MeteredService(backend, tmp_path)


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

    async def encode(self, request: ReplicaRequest) -> Encoded:
        return Encoded((1,) * 299)


@pytest.mark.parametrize("path", [GENERATE, COMPLETIONS])
async def test_an_answer_costs_the_tokens_that_it_used(meter, path):
    service = meter(Scripted(BLOCK, ENDING))
    for number, stream in enumerate((False, True), 1):
        assert (await service.http.post(path, json=REQUESTS[path] | {"stream": stream})).status_code == 200
        assert service.charged == number * USED


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(getattr(error, "error", error)).__name__)
@pytest.mark.parametrize("path", [GENERATE, COMPLETIONS])
async def test_a_failed_request_costs_the_tokens_that_were_streamed(meter, path, error):
    """Nothing before the first block, and nothing of a whole answer, of which the client got nothing."""
    backend = Scripted(error)
    service = meter(backend)
    for stream in (False, True):
        assert (await service.http.post(path, json=REQUESTS[path] | {"stream": stream})).status_code >= 500
    backend.items = (BLOCK, error)
    assert (await service.http.post(path, json=REQUESTS[path])).status_code >= 500
    assert service.charged == 0
    response = await service.http.post(path, json=REQUESTS[path] | {"stream": True})
    assert response.status_code == 200
    assert "error" in response.text
    assert service.charged == len(BLOCK.token_ids)


class TestOwnLimits:
    """The limits of the client end the request. It is charged as if it had left."""

    @pytest.mark.parametrize("error", [DeadlineExceeded("late"), ConstraintFailed("no token is allowed")])
    @pytest.mark.parametrize("path", [GENERATE, COMPLETIONS])
    async def test_the_estimate_stays(self, meter, path, error):
        service = meter(Scripted(BLOCK, Failure(error)))
        for number, stream in enumerate((False, True), 1):
            await service.http.post(path, json=REQUESTS[path] | {"stream": stream})
            assert service.charged == number * ESTIMATES[path]

    async def test_the_prompt_is_charged_with_the_first_block(self, meter):
        """Whatever the estimate was. The client leaves then."""
        service = meter(Scripted(replace(BLOCK, prompt_tokens=700), hangs=True))
        request = body(stream=True, prompt_token_ids=None, prompt="w1 w2")
        await AsgiClient(request, headers=KEY).request(service.app)
        assert service.charged == 700 + len(BLOCK.token_ids)

    async def test_a_refused_prompt_costs_itself(self, meter):
        service = meter(Scripted(Failure(InvalidRequest("too long"))))
        assert (await service.http.post(GENERATE, json=body())).status_code == 422
        assert service.charged == 8

    async def test_the_ended_answers_of_a_late_request_are_charged(self, meter):
        """Else one answer that is too late makes all others free."""
        service = meter(Choices([None, ENDING], [BLOCK, None, DeadlineExceeded("late")], [BLOCK]))
        assert (await service.http.post(COMPLETIONS, json=SEVERAL)).status_code == 504
        # the first used a fourth of its most tokens, so the others may, too
        assert service.charged == USED + 2 * (1 + 16 / 4)

    async def test_counting_costs_a_tenth(self, meter):
        service = meter(Counting())
        message = {"role": "user", "content": "How long?"}
        answer = await service.http.post("/v1/messages/count_tokens", json={"model": "golden", "messages": [message]})
        assert answer.json() == {"input_tokens": 299}
        assert service.charged == 30


class TestSeveralAnswers:
    """One of them fails, so the request fails."""

    async def test_whole_answers_are_free(self, meter):
        """The first has ended, the third is being decoded."""
        service = meter(Choices([None, ENDING], [BLOCK, None, LOST], [BLOCK]))
        assert (await service.http.post(COMPLETIONS, json=SEVERAL)).status_code == 503
        assert service.charged == 0

    async def test_a_stream_is_charged_for_the_blocks_so_far(self, meter):
        service = meter(Choices([BLOCK, ENDING, None], [BLOCK, LOST], [BLOCK]))
        response = await service.http.post(COMPLETIONS, json=SEVERAL | {"stream": True})
        assert "replica_lost" in response.text
        assert service.charged == USED + len(BLOCK.token_ids)


class TestCut:
    """A server that stops ends answers itself."""

    @pytest.mark.parametrize("path", [GENERATE, COMPLETIONS])
    @pytest.mark.parametrize("stream", [False, True])
    async def test_the_streamed_blocks_are_charged(self, meter, path, stream):
        backend = Scripted(BLOCK, hangs=True)
        service = meter(backend)
        request = REQUESTS[path] | {"stream": stream}
        task = asyncio.ensure_future(service.http.post(path, json=request))
        await backend.all_hang.wait()
        assert service.charged == ESTIMATES[path]
        service.ingress.draining.abort()
        assert "the server shut down" in (await task).text
        assert service.charged == (len(BLOCK.token_ids) if stream else 0)


class TestLeaving:
    """The client aborted the request. It pays the estimate, since the work was done for it."""

    async def test_a_whole_answer_is_charged_its_estimate(self, meter):
        backend = Scripted(BLOCK, hangs=True)
        service = meter(backend)
        task = asyncio.ensure_future(service.http.post(GENERATE, json=body()))
        await backend.all_hang.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert backend.live == 0
        assert service.charged == ESTIMATES[GENERATE]

    @pytest.mark.parametrize("version", ["2.3", "2.4"])
    async def test_a_stream_is_charged_its_estimate(self, meter, version):
        service = meter(backend := Scripted(BLOCK, BLOCK, hangs=True))
        await AsgiClient(body(stream=True), version, headers=KEY).request(service.app)
        assert backend.live == 0
        assert service.charged == ESTIMATES[GENERATE]

    async def test_a_stream_that_was_longer_than_its_estimate_is_charged_its_blocks(self, meter):
        """Otherwise a client that leaves before the last block would pay less than one that stays."""
        service = meter(Scripted(BLOCK, BLOCK, BLOCK, hangs=True))
        await AsgiClient(body(stream=True, max_new_tokens=1), headers=KEY).request(service.app)
        assert service.charged >= len(BLOCK.token_ids)
