"""A golden checkpoint that chats, thinks and calls tools as Qwen3 does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.model import load_checkpoint
from service.replica.generator import Generator
from service.settings import Settings
from tests.gateway.chatting import give_qwen3
from tests.gateway.conftest import UNMEASURED


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generator]:
    path = give_qwen3(tmp_path_factory.mktemp("chatting") / "golden")
    settings = Settings(model=str(path), device="cpu", dtype="float32", kv_cache_tokens=8192)
    generator = Generator("r0", load_checkpoint(path), settings, parts=UNMEASURED)
    yield generator
    generator.close()
