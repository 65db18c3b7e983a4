"""A golden checkpoint with a chat template behind the whole application, in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.types import ASGIApp

from service.api.backend import LocalBackend
from service.api.generator import Generator, load_generator
from service.api.ingress import Ingress
from service.settings import Settings
from tests.tiny import GOLDEN

TEMPLATE = (
    "{% for m in messages %}w1 {{ m['role'] }} {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}w2{% endif %}"
)


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    path = tmp_path_factory.mktemp("checkpoint") / "golden"
    shutil.copytree(GOLDEN / "sdar-mrp-random-a", path)
    _give_template(path / "tokenizer_config.json")
    return Settings(model=str(path), device="cpu", dtype="float32", max_body_bytes=65536)


def _give_template(path: Path) -> None:
    config = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(config | {"chat_template": TEMPLATE}), "utf-8")


@pytest.fixture(scope="session")
def generator(settings: Settings) -> Iterator[Generator]:
    generator = load_generator("r0", settings)
    yield generator
    generator.close()


@pytest.fixture
def app(settings: Settings, generator: Generator) -> ASGIApp:
    return Ingress("i0", settings, LocalBackend(generator)).app(answers_request_id=True)


@pytest.fixture
async def http(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        yield client
