"""Clients that leave: their pages are freed, their requests end as aborted, and other requests are not affected."""

import asyncio
import logging
from typing import Any

import pytest
from ray.exceptions import TaskCancelledError

from service.api import streams
from service.gateway.ingress import Ingress
from service.rayserve.deployments import with_asgi_disconnect
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.gateway.doubles import AsgiClient
from tests.gateway.generate.helpers import CASES, ask, body, golden_body, read_frames
from tests.gateway.helpers import application, client, eventually, idle, over, page, read
from tests.gateway.local import LocalBackend

LONG = body(max_new_tokens=1900, ignore_eos=True)


async def assert_gone(generator: Replica, mode: str = "static") -> None:
    """Checks that nothing is left of the only request, and that the metrics count it as aborted."""
    await eventually(lambda: idle(generator))
    async with over(generator) as http:
        metrics = await page(http)
    assert metrics("mrp_kv_cache_usage_perc") == 0
    assert metrics("mrp_num_requests_running") == metrics("mrp_num_requests_waiting") == 0
    assert metrics("mrp_request_success_total", mode=mode, finished_reason="abort", replica="r0") == 1
    assert metrics("mrp_request_success_total") == 1
    assert metrics("mrp_generation_tokens_total") < 1900
    assert generator.snapshot().in_flight == 0


class TestStreams:
    @pytest.mark.parametrize("version", ["2.3", "2.4"])
    async def test_the_client_leaves(self, make_generator, gate, version, monkeypatch):
        """Servers of ASGI 2.3 say so when asked, later ones refuse what is sent: a block or a comment."""
        monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.01)
        generator = make_generator(deps=gate.deps)
        ingress = Ingress("i0", Settings(), LocalBackend(generator))
        asgi_client = AsgiClient(LONG | {"stream": True}, version)
        gate.let(12)  # the first block and a part of the second
        await asyncio.gather(asgi_client.request(ingress.app(answers_request_id=True)), return_exceptions=True)
        gate.release()
        assert read_frames(asgi_client.content)[0][1]["token_ids"] == CASES[0]["token_ids"][:8]
        assert ingress.snapshot().in_flight == 0
        await assert_gone(generator)

    async def test_the_server_cancels(self, make_generator, gate):
        generator = make_generator(deps=gate.deps)
        ingress = Ingress("i0", Settings(), LocalBackend(generator))
        asgi_client = AsgiClient(LONG | {"stream": True, "mode": "speculative"}, stays=True)
        task = asyncio.ensure_future(asgi_client.request(ingress.app(answers_request_id=True)))
        gate.let(8)  # a block at least: drafts only save forwards
        await asgi_client.got_block.wait()
        assert (ingress.snapshot().in_flight, generator.snapshot().in_flight) == (1, 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert ingress.snapshot().in_flight == 0
        gate.release()
        await assert_gone(generator, "speculative")

    async def test_other_requests_are_not_affected(self, make_generator):
        generator = make_generator()
        app = application(generator)
        async with over(generator) as http:
            staying = [asyncio.ensure_future(ask(http, golden_body(case))) for case in CASES[::5]]
            await asyncio.gather(*(AsgiClient(LONG | {"stream": True}).request(app) for _ in range(3)))
            answers = await asyncio.gather(*staying)
        assert [answer["token_ids"] for answer in answers] == [case["token_ids"] for case in CASES[::5]]
        await eventually(lambda: idle(generator))


class TestWholeAnswers:
    @pytest.mark.parametrize("running", [False, True])
    async def test_the_server_cancels(self, make_generator, gate, running):
        generator = make_generator(deps=gate.deps)
        ingress = Ingress("i0", Settings(), LocalBackend(generator))
        async with client(ingress.app(answers_request_id=True)) as http:
            task = asyncio.ensure_future(ask(http, LONG))
            await gate.holds()
            if running:
                gate.let(12)
                await gate.holds(before=13)
            assert ingress.snapshot().in_flight == 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert ingress.snapshot().in_flight == 0
        gate.release()
        await assert_gone(generator)

    async def test_the_client_leaves_while_the_request_waits(self, make_generator, gate):
        generator = make_generator(deps=gate.deps, max_num_seqs=1)
        async with over(generator) as http:
            running = asyncio.ensure_future(ask(http, body()))
            await gate.holds()
            waiting = asyncio.ensure_future(ask(http, LONG))
            await eventually(lambda: generator.snapshot().in_flight == 2)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            gate.release()
            assert (await running)["token_ids"] == CASES[0]["token_ids"]
            await ask(http, body())  # the engine has taken all that came before
            assert (await page(http))("mrp_prompt_tokens_total") == 8 + 8


class TestBeforeItIsRead:
    async def test_serves_cancellation_before_the_body_is_read_is_no_error(self, generator, caplog):
        sent: list[Any] = []

        async def receive() -> Any:
            raise TaskCancelledError

        async def send(message: Any) -> None:
            sent.append(message)

        ingress = Ingress("i0", Settings(), LocalBackend(generator))
        scope = {"type": "http", "method": "POST", "path": "/generate", "headers": [], "query_string": b""}
        with caplog.at_level(logging.WARNING):
            await with_asgi_disconnect(ingress.app(answers_request_id=False))(scope, receive, send)
        assert sent[0]["status"] == 499
        assert not caplog.records
        assert read(ingress.snapshot().families, "mrp_request_rejected_total") == 0
