"""A golden checkpoint with a chat template behind a real HTTP server in this process, without Ray."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from service.gateway.ingress import Ingress
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.gateway.conftest import UNMEASURED, give_template
from tests.gateway.local import LocalBackend
from tests.replicas import load_replica
from tests.serving import listening

#: default limits of the routes (256 tokens and less) fit, answers stay short
MODEL_LENGTH = 300


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    path = give_template(tmp_path_factory.mktemp("checkpoint") / "golden")
    limits: dict[str, Any] = {"max_model_len": MODEL_LENGTH, "max_body_bytes": 65536, "admin_keys": ("boss",)}
    return Settings(model=str(path), device="cpu", dtype="float32", **limits)


@pytest.fixture(scope="session")
def generator(settings: Settings) -> Iterator[Replica]:
    with closing(load_replica("r0", settings, UNMEASURED)) as generator:
        yield generator


@pytest.fixture(scope="session")
def app(settings: Settings, generator: Replica) -> ASGIApp:
    return Ingress("i0", settings, LocalBackend(generator)).app(answers_request_id=True)


@pytest.fixture(scope="session")
def url(app: ASGIApp) -> Iterator[str]:
    """Where the application is served, by a thread of this process."""
    with listening(app) as address:
        yield address.rstrip("/")


@pytest.fixture(scope="session")
def tools_url(qwen3_settings: Settings, chatting: Replica) -> Iterator[str]:
    """Where a checkpoint that knows tools and thinks is served."""
    with listening(Ingress("i0", qwen3_settings, LocalBackend(chatting)).app(answers_request_id=True)) as address:
        yield address.rstrip("/")


@pytest.fixture(scope="session")
def tools_http(tools_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tools_url, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client
