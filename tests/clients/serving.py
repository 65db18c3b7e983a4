"""Two servers of this process for clients: the demo, and a checkpoint that likes to call tools."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from service.demo import CHECKPOINT
from service.engine import EngineDeps
from service.gateway.ingress import Ingress
from service.model import Checkpoint, load_checkpoint
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.engine.helpers import CHEAP_ROWS
from tests.gateway import chatting
from tests.gateway.local import LocalBackend
from tests.replicas import local_generator
from tests.serving import listening

#: the name of both checkpoints
MODEL = "demo"


@contextmanager
def servers() -> Iterator[dict[str, str]]:
    """The environment of a client: the addresses of the two servers, and the name of their models."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = chatting.give_qwen3(folder / MODEL) / "config.json"
        config.write_text(
            json.dumps(json.loads(config.read_text("utf-8")) | {"max_position_embeddings": 16384}), "utf-8"
        )
        tools = chatting.liking(load_checkpoint(config.parent), "<tool_call>")
        yield {
            "DEMO": stack.enter_context(_served(load_checkpoint(CHECKPOINT))),
            "TOOLS": stack.enter_context(_served(tools)),
            "MODEL": MODEL,
        }


@contextmanager
def _served(checkpoint: Checkpoint) -> Iterator[str]:
    settings = Settings(device="cpu", dtype="float32", kv_cache_tokens=65536)
    replica: Replica = local_generator("r0", checkpoint, settings, deps=EngineDeps(costs=CHEAP_ROWS))
    try:
        with listening(Ingress("i0", settings, LocalBackend(replica)).app(answers_request_id=True)) as url:
            yield url
    finally:
        replica.close()
