"""Applications over a golden checkpoint that chats as Qwen3 does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai
import pytest

from service.gateway.ingress import Ingress
from service.model import load_checkpoint
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.gateway.chatting import give_qwen3, liking
from tests.gateway.conftest import UNMEASURED
from tests.gateway.local import LocalBackend
from tests.replicas import local_generator


@pytest.fixture(scope="session")
def qwen3_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = give_qwen3(tmp_path_factory.mktemp("checkpoint") / "golden")
    sizes: dict[str, Any] = {"kv_cache_tokens": 16384, "max_model_len": 4096, "default_max_tokens": 256}
    return Settings(model=str(folder), device="cpu", dtype="float32", **sizes)


@pytest.fixture(scope="session")
def caller(qwen3_settings: Settings) -> Iterator[Replica]:
    """A replica that often begins a call, and ends what it thinks."""
    checkpoint = liking(load_checkpoint(qwen3_settings.model), "<tool_call>", "</think>")
    generator = local_generator("r0", checkpoint, qwen3_settings, deps=UNMEASURED)
    yield generator
    generator.close()


@pytest.fixture(scope="session")
def other_caller(qwen3_settings: Settings) -> Iterator[Replica]:
    """The same once more."""
    checkpoint = liking(load_checkpoint(qwen3_settings.model), "<tool_call>", "</think>")
    generator = local_generator("r1", checkpoint, qwen3_settings, deps=UNMEASURED)
    yield generator
    generator.close()


@pytest.fixture
async def qwen3(qwen3_settings: Settings, caller: Replica) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's own client, unmodified, of an application over such a replica."""
    app = Ingress("i0", qwen3_settings, LocalBackend(caller)).app(answers_request_id=True)
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app))
    async with openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", max_retries=0, http_client=http) as client:
        yield client
