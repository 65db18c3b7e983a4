"""One golden checkpoint with a chat template, and whole applications over it in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from service.engine import EngineDeps
from service.gateway.ingress import Ingress
from service.model import Checkpoint, load_checkpoint
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.engine.helpers import FAIR
from tests.gateway.chatting import give_qwen3
from tests.gateway.helpers import client
from tests.gateway.local import LocalBackend
from tests.replicas import local_generator
from tests.tiny import GOLDEN

TEMPLATE = (
    "{% for m in messages %}w1 {{ m['role'] }} {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}w2{% endif %}"
)

#: what forwards cost is said, not measured
UNMEASURED = EngineDeps(costs=FAIR)

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
    generator = local_generator("r0", checkpoint, settings, deps=UNMEASURED)
    yield generator
    generator.close()


@pytest.fixture
def make_generator(settings: Settings, checkpoint: Checkpoint) -> Iterator[MakeGenerator]:
    """make_generator(name, checkpoint, deps, **settings) -> a fresh one, closed after the test."""
    made: list[Replica] = []

    def make(
        name: str = "r0", model: Checkpoint = checkpoint, deps: EngineDeps = UNMEASURED, **changes: Any
    ) -> Replica:
        made.append(local_generator(name, model, settings.model_copy(update=changes), deps=deps))
        return made[-1]

    yield make
    for generator in made:
        generator.close()


@pytest.fixture
def byte_checkpoint(settings: Settings, tmp_path: Path) -> Checkpoint:
    """The golden one with one token a byte: a random model writes broken and whole characters over all borders."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([f"{number}é😀" for number in range(256, 508)])
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<|pad|>", "<|MASK|>", "<|eos|>")])
    shutil.copytree(settings.model, tmp_path, dirs_exist_ok=True)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return load_checkpoint(tmp_path)


@pytest.fixture(scope="module")
def app(settings: Settings, generator: Replica) -> ASGIApp:
    """One for the tests of a file. A test that counts what the ingress did takes one of its own, by `over`."""
    return Ingress("i0", settings, LocalBackend(generator)).app(answers_request_id=True)


@pytest.fixture
async def http(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    async with client(app) as http:
        yield http


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """Of a golden checkpoint that chats, thinks and calls tools as Qwen3 does."""
    path = give_qwen3(tmp_path_factory.mktemp("chatting") / "golden")
    settings = Settings(model=str(path), device="cpu", dtype="float32", kv_cache_tokens=8192)
    generator = local_generator("r0", load_checkpoint(path), settings, deps=UNMEASURED)
    yield generator
    generator.close()
