"""One golden checkpoint with a chat template, and whole applications over it in this process."""

import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.types import ASGIApp

from service.engine import EngineDeps
from service.gateway.ingress import Ingress
from service.model import Checkpoint, load_checkpoint
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.engine.helpers import CHEAP_ROWS
from tests.gateway.chatting import give_qwen3, liking, tokenizer
from tests.gateway.engines import EngineGate
from tests.gateway.helpers import client
from tests.gateway.local import LocalBackend
from tests.replicas import local_generator
from tests.tiny import GOLDEN

TEMPLATE = (
    "{% for m in messages %}w1 {{ m['role'] }} {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}w2{% endif %}"
)

#: engines that do not measure the cost of forwards
UNMEASURED = EngineDeps(costs=CHEAP_ROWS)

MakeGenerator = Callable[..., Replica]


def give_template(folder: Path) -> Path:
    """A copy of the golden checkpoint, whose tokenizer knows chats."""
    shutil.copytree(GOLDEN / "sdar-mrp-random-a", folder)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text("utf-8")) | {"chat_template": TEMPLATE}), "utf-8")
    return folder


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    model = give_template(tmp_path_factory.mktemp("checkpoint") / "golden")
    return Settings(model=str(model), device="cpu", dtype="float32", kv_cache_tokens=8192, default_max_tokens=256)


@pytest.fixture(scope="session")
def checkpoint(settings: Settings) -> Checkpoint:
    return load_checkpoint(settings.model)


@pytest.fixture(scope="session")
def generator(settings: Settings, checkpoint: Checkpoint) -> Iterator[Replica]:
    with closing(local_generator("r0", checkpoint, settings, deps=UNMEASURED)) as generator:
        yield generator


@pytest.fixture(scope="session")
def other(settings: Settings, checkpoint: Checkpoint) -> Iterator[Replica]:
    with closing(local_generator("r1", checkpoint, settings, deps=UNMEASURED)) as generator:
        yield generator


@pytest.fixture
def make_generator(settings: Settings, checkpoint: Checkpoint) -> Iterator[MakeGenerator]:
    """make_generator(name, checkpoint, deps, **settings) -> a fresh one, closed after the test."""
    generators: list[Replica] = []

    def make(
        name: str = "r0", model: Checkpoint = checkpoint, deps: EngineDeps = UNMEASURED, **changes: Any
    ) -> Replica:
        generators.append(local_generator(name, model, settings.model_copy(update=changes), deps=deps))
        return generators[-1]

    yield make
    for generator in generators:
        generator.close()


@pytest.fixture
def gate(make_generator: MakeGenerator) -> Iterator[EngineGate]:
    gate = EngineGate()
    yield gate
    gate.release()


@pytest.fixture(scope="session")
def byte_checkpoint(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The golden one with one token a byte: a random model writes broken and whole characters over all borders."""
    folder = tmp_path_factory.mktemp("bytes") / Path(settings.model).name
    shutil.copytree(settings.model, folder, dirs_exist_ok=True)
    tokenizer((), ("<|pad|>", "<|MASK|>", "<|eos|>")).save(str(folder / "tokenizer.json"))
    return load_checkpoint(folder)


@pytest.fixture(scope="session")
def bytewise(settings: Settings, byte_checkpoint: Checkpoint) -> Iterator[Replica]:
    with closing(local_generator("r0", byte_checkpoint, settings, deps=UNMEASURED)) as generator:
        yield generator


@pytest.fixture(scope="module")
def app(settings: Settings, generator: Replica) -> ASGIApp:
    """One for the tests of a file. A test that counts what the ingress did takes one of its own, by `over`."""
    return Ingress("i0", settings, LocalBackend(generator)).app(answers_request_id=True)


@pytest.fixture
async def http(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    async with client(app) as http:
        yield http


@pytest.fixture(scope="session")
def qwen3_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Of a golden checkpoint that chats, thinks and calls tools as Qwen3 does."""
    folder = give_qwen3(tmp_path_factory.mktemp("qwen3") / "golden")
    sizes: dict[str, Any] = {"kv_cache_tokens": 16384, "max_model_len": 4096, "default_max_tokens": 256}
    return Settings(model=str(folder), device="cpu", dtype="float32", **sizes)


@pytest.fixture(scope="session")
def chatting(qwen3_settings: Settings) -> Iterator[Replica]:
    settings = qwen3_settings.model_copy(update={"max_model_len": None})
    with closing(local_generator("r0", load_checkpoint(settings.model), settings, deps=UNMEASURED)) as generator:
        yield generator


@pytest.fixture(scope="session")
def callers(qwen3_settings: Settings) -> Iterator[tuple[Replica, Replica]]:
    """Two replicas that often begin a call, and end their thinking."""
    checkpoint = liking(load_checkpoint(qwen3_settings.model), "<tool_call>", "</think>")
    generators = [local_generator(name, checkpoint, qwen3_settings, deps=UNMEASURED) for name in ("r0", "r1")]
    yield generators[0], generators[1]
    for generator in generators:
        generator.close()


@pytest.fixture
def caller(callers: tuple[Replica, Replica]) -> Replica:
    return callers[0]


def openai_client(app: ASGIApp) -> openai.AsyncOpenAI:
    """OpenAI's client, unmodified, of an application in this process."""
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app))
    return openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", max_retries=0, http_client=http)


@pytest.fixture
async def qwen3(qwen3_settings: Settings, caller: Replica) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client of a replica that often begins a call."""
    async with openai_client(
        Ingress("i0", qwen3_settings, LocalBackend(caller)).app(answers_request_id=True)
    ) as client:
        yield client
