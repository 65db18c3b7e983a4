"""An agent of OpenAI's own framework, unmodified, over a tool that adds numbers. Skipped where it is not installed."""

from __future__ import annotations

import httpx
import pytest

from loadtest.agents import run
from service.gateway.ingress import Ingress
from service.model import load_checkpoint
from service.settings.settings import Settings
from tests.gateway.conftest import MakeGenerator
from tests.gateway.local import LocalBackend

pytest.importorskip(
    "agents", reason="the extra `dev` leaves openai-agents out, an application's framework; `pip install openai-agents`"
)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_adds_numbers(qwen3_settings: Settings, make_generator: MakeGenerator, stream: bool) -> None:
    """The model is random: it calls where it must, and says anything where it may."""
    generator = make_generator(model=load_checkpoint(qwen3_settings.model))
    app = Ingress("i0", qwen3_settings, LocalBackend(generator)).app(answers_request_id=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:
        found = await run("http://test/v1", "golden", stream=stream, http=http)
    assert found["calls"]
    assert all(0 <= a <= 999 and 0 <= b <= 999 for a, b in found["calls"])
    assert found["answer"]
    assert found.get("events", 9) > 8
