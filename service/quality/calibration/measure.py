"""Runs plans over prompts: all prompts at temperature 0, then all at each temperature above it.

Plans with static's answers by construction answer the first prompts only, which show their tokens per forward.
`service/cli/calibrate.py` calls this module.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import torch

from service.decode.mode import DecodingMode
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.model import Checkpoint
from service.model.files import display_name
from service.quality.calibration.pareto import is_lossless
from service.quality.calibration.prompts import PromptTask
from service.quality.calibration.records import ChunkRecord, Notebook, PlanChunk, make_rows
from service.quality.schema import Margins, Measured, Plan, PlanResult

#: the prompts of a chunk, which are decoded together
CHUNK = 32
#: the prompts that lossless plans answer
LOSSLESS_PROMPTS = 2 * CHUNK


class Scope(NamedTuple):
    """The size of a measurement. `temperatures` are above 0 and ascend."""

    max_new_tokens: int
    temperatures: tuple[float, ...] = ()


class Calibration:
    """Plans over tasks on one engine. `tasks` are in the order of the file."""

    def __init__(
        self, engine: Engine, tasks: Sequence[PromptTask], plans: Sequence[DecodingMode], scope: Scope
    ) -> None:
        self._engine, self._tasks, self._scope = engine, tasks, scope
        self._plans = {Plan.from_mode(plan).name: plan for plan in plans}

    @property
    def plan_names(self) -> list[str]:
        return list(self._plans)

    def rows(self, notebook: Notebook) -> list[PlanResult]:
        return make_rows(list(self._plans.values()), notebook.records.values())

    @property
    def jobs(self) -> list[PlanChunk]:
        return [*self._greedy(), *self._sampled()]

    def run(self, notebook: Notebook) -> Iterator[PlanChunk]:
        """Does the jobs that the notebook lacks; yields every job when the notebook has it."""
        self._engine.prepare()
        for job in self._greedy():
            if job not in notebook.records:
                notebook.add(self.measure(job))
            yield job
        margin = Margins().fast  # of plans that lose more at temperature 0, no preset allows any, so they end here
        allowed = {row.plan.name for row in self.rows(notebook) if row.difference >= -margin}
        for job in self._sampled():
            if job not in notebook.records and job.plan in allowed:
                notebook.add(self.measure(job))
            yield job

    def _greedy(self) -> Iterator[PlanChunk]:
        """The first prompts with all plans, the others with static and plans of unknown accuracy."""
        for start in range(0, len(self._tasks), CHUNK):
            plans = self._plans if start < LOSSLESS_PROMPTS else self._lossy_and_static()
            yield from (PlanChunk(plan, start) for plan in plans)

    def _sampled(self) -> Iterator[PlanChunk]:
        """All prompts at the temperatures above 0, for static and plans of unknown accuracy."""
        for temperature in self._scope.temperatures:
            for start in range(0, len(self._tasks), CHUNK):
                yield from (PlanChunk(plan, start, temperature) for plan in self._lossy_and_static())

    def _lossy_and_static(self) -> list[str]:
        static, *further = self._plans
        return [static, *(name for name in further if not is_lossless(self._plans[name]))]

    def measure(self, job: PlanChunk) -> ChunkRecord:
        chunk = range(job.start, min(len(self._tasks), job.start + CHUNK))
        completions = self._engine.generate(self._request(job, index) for index in chunk)
        forwards = [completion.stats.forwards for completion in completions]
        return ChunkRecord(
            job,
            right=[self._tasks[index].is_right(c.token_ids) for index, c in zip(chunk, completions, strict=True)],
            answers=[hashlib.sha256(repr(c.token_ids).encode()).hexdigest()[:16] for c in completions],
            tokens=sum(completion.stats.decoded_tokens for completion in completions),
            forwards=sum(count.denoise + count.verify for count in forwards),
        )

    def _request(self, job: PlanChunk, index: int) -> GenerationRequest:
        prompt, stop = self._tasks[index].prompt_token_ids, frozenset(self._engine.model.eos_token_ids)
        sampling, tokens = SamplingParams(job.temperature, seed=index), self._scope.max_new_tokens
        return GenerationRequest(str(index), prompt, self._plans[job.plan], sampling, tokens, stop)


def engine_for(
    checkpoint: Checkpoint, tasks: Sequence[PromptTask], scope: Scope, deps: EngineDeps | None = None
) -> Engine:
    """An engine for a chunk of the longest prompts."""
    longest = max(len(task.prompt_token_ids) for task in tasks) + scope.max_new_tokens
    tokens = CHUNK * (longest + 2 * checkpoint.config.block_size)
    return Engine(checkpoint, EngineConfig(CHUNK, kv_cache_tokens=tokens), deps=deps)


def circumstances(checkpoint: Checkpoint, scope: Scope, prompts: Mapping[str, Any]) -> Measured:
    """The circumstances of a measurement. `prompts`: the fields that name the prompts and the scorer."""
    device = checkpoint.device
    return Measured(
        at=datetime.now(UTC).date().isoformat(),
        model=display_name(checkpoint.path),
        max_new_tokens=scope.max_new_tokens,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        dtype=str(checkpoint.dtype).removeprefix("torch."),
        temperatures=[0.0, *scope.temperatures],
        how=f"{CHUNK} requests together; lossless plans answer {LOSSLESS_PROMPTS} prompts at most; intervals are 95 %",
        **prompts,
    )
