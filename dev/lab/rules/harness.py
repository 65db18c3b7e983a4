"""Runs methods on the demo: tasks, an engine that answers what plans ask for, rows.

Plans take turns by `service/bench/calibration.py`. Reported numbers come from 1,000 held-out problems, those of
`mrp-serve eval --problems 1000`. Settings are tuned on the other 200. Text has no right answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from service.bench.calibration import Calibration, Scope, Task
from service.bench.records import Notebook
from service.decode.mode import DecodingMode
from service.demo import CHECKPOINT, Problem, heldout_problems
from service.engine import Completion, Engine, EngineConfig, GenerationRequest
from service.engine.request import LogprobsRequest
from service.model import Checkpoint
from service.text import TextCodec

_REPORTED = 1000
_TOGETHER = 32


class Work(NamedTuple):
    """What is asked, and how much of it is timed."""

    tasks: list[Task]
    scope: Scope


class Answering:
    """An engine as `Calibration` uses it. A plan's `likeliest` is asked of its requests."""

    def __init__(self, checkpoint: Checkpoint, work: Work) -> None:
        longest = max(len(task.prompt_token_ids) for task in work.tasks) + work.scope.max_new_tokens
        tokens = _TOGETHER * (longest + 2 * checkpoint.config.block_size)
        self._engine = Engine(checkpoint, EngineConfig(_TOGETHER, kv_cache_tokens=tokens, prefix_cache=False))
        self.model = self._engine.model

    def generate(self, requests: Iterable[GenerationRequest]) -> list[Completion]:
        """Decodes the requests together."""
        return self._engine.generate(map(_asking, requests))


def _asking(request: GenerationRequest) -> GenerationRequest:
    likeliest = getattr(request.params, "likeliest", 0)
    return replace(request, logprobs=LogprobsRequest(likeliest)) if likeliest else request


def reported() -> Work:
    """The problems of the reported numbers, timed at 1, 8 and 32 requests together."""
    return Work(tasks_of(heldout_problems(_REPORTED)), Scope((1, 8, _TOGETHER), 192, 128))


def tuning() -> Work:
    """The held-out problems that no reported number uses."""
    used = set(heldout_problems(_REPORTED))
    others = [problem for problem in heldout_problems() if problem not in used]
    return Work(tasks_of(others), Scope((_TOGETHER,), 128, 128))


def continued(file: Path) -> Work:
    """Continuations of 64 tokens of the texts of a file (`python -m training.demo.text`)."""
    codec = TextCodec.load(CHECKPOINT)
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    tasks = [Task(tuple(codec.encode(line["prompt"])), lambda _: False) for line in lines]
    return Work(tasks, Scope((_TOGETHER,), 64, 64))


WORK: Mapping[str, Callable[[], Work]] = {"reported": reported, "tuning": tuning}


def prepare(checkpoint: Checkpoint, work: Work, plans: Sequence[DecodingMode]) -> Calibration:
    """What runs the plans over the work in turns."""
    return Calibration(Answering(checkpoint, work), work.tasks, plans, work.scope)  # type: ignore[arg-type]


def notes_of(calibration: Calibration, work: Work, path: Path) -> Notebook:
    """What is measured so far, in a file, so that it can go on."""
    return Notebook(path, {"plans": calibration.plan_names, "scope": repr(work.scope), "tasks": len(work.tasks)})


def tasks_of(problems: Iterable[Problem]) -> list[Task]:
    """The problems as chats, with their checker."""
    codec = TextCodec.load(CHECKPOINT)
    return [
        Task(
            tuple(codec.encode_chat([{"role": "user", "content": problem.prompt}])),
            partial(_is_right, problem, codec),
        )
        for problem in problems
    ]


def _is_right(problem: Problem, codec: TextCodec, answer: tuple[int, ...]) -> bool:
    return problem.check(codec.decode(answer))
