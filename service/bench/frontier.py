"""What a measurement of plans at several loads needs: tasks from lines of prompts, an engine, the circumstances.

`calibration.py` measures, `mrp-serve frontier` and `mrp-serve calibrate` ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch

from service.bench.calibration import Scope, Task
from service.bench.grid import grid
from service.bench.rows import Clock
from service.bench.scorers import Scorer
from service.decode.mode import DecodingMode
from service.decode.modes import Static
from service.engine import Engine, EngineConfig, EngineDeps
from service.model import Checkpoint
from service.quality.schema import Measured
from service.text import TextCodec

_HOW: Mapping[Clock, str] = {
    "cpu": "tokens a second of CPU time of one thread; other work on the machine does not change it",
    "wall": "tokens a second of wall-clock time; the machine must have no other work",
}


def plans_of(given: Sequence[DecodingMode], checkpoint: Checkpoint) -> list[DecodingMode]:
    """The given plans, or the default grid. Static comes first: the others are compared with it."""
    if not given:
        return grid(checkpoint.config.block_size, has_mrp=checkpoint.mrp is not None)
    return [Static(), *(plan for plan in dict.fromkeys(given) if plan != Static())]


def tasks_of(
    checkpoint: Checkpoint, lines: Sequence[Mapping[str, Any]], scorer: Scorer, *, raw: bool = False
) -> list[Task]:
    """A task a line. Prompts are chats of one message. With `raw`, or without a chat template, they stay texts."""
    codec = TextCodec.load(checkpoint.path)
    encode = codec.encode if raw or not codec.has_chat_template else _chat(codec)
    return [Task(tuple(encode(line["prompt"])), partial(_is_right, codec, scorer, line)) for line in lines]


def _chat(codec: TextCodec) -> Callable[[str], list[int]]:
    return lambda text: codec.encode_chat([{"role": "user", "content": text}])


def _is_right(codec: TextCodec, scorer: Scorer, line: Mapping[str, Any], answer: tuple[int, ...]) -> bool:
    return bool(scorer(line, codec.decode(answer)))


def engine_for(checkpoint: Checkpoint, tasks: Sequence[Task], scope: Scope, deps: EngineDeps | None = None) -> Engine:
    """An engine with pages for the longest prompts at the highest concurrency.

    It has no prefix cache, so that every plan pays for its prefill.
    """
    longest = max(len(task.prompt_token_ids) for task in tasks) + scope.max_new_tokens
    tokens = max(scope.concurrency) * (longest + 2 * checkpoint.config.block_size)
    limits = EngineConfig(max(scope.concurrency), kv_cache_tokens=tokens, prefix_cache=False)
    return Engine(checkpoint, limits, deps=deps)


def circumstances(checkpoint: Checkpoint, scope: Scope, asked: Mapping[str, Any]) -> Measured:
    """What is measured, on what, and by which clock. `asked`: the fields that say which prompts and scorer."""
    device, threads = checkpoint.device, torch.get_num_threads()
    alone = device.type == "cpu" and threads == 1 and checkpoint.shard.size == 1
    clock: Clock = "cpu" if alone else "wall"
    return Measured(
        at=datetime.now(UTC).date().isoformat(),
        model=checkpoint.path.resolve().name,
        max_new_tokens=scope.max_new_tokens,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        dtype=str(checkpoint.dtype).removeprefix("torch."),
        threads=threads,
        clock=clock,
        concurrency=list(scope.concurrency),
        how=f"{_HOW[clock]}; prefill included, plans in turns, {scope.timed} prompts; intervals are 95 %",
        **asked,
    )
