"""Runs plans over prompts at several loads: the timed prompts at every concurrency, the others, then all above 0.

Plans take turns chunk by chunk, so that a machine that is busy for a while is so for all of them. Plans with
static's answers by construction answer the timed prompts only. `service/cli/calibrate.py` calls this module.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch

from service.decode.mode import DecodingMode
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.errors import SettingsError
from service.model import Checkpoint
from service.model.files import display_name
from service.quality.calibration.pareto import is_lossless
from service.quality.calibration.prompts import PromptTask
from service.quality.calibration.records import ChunkRecord, Clock, Notebook, PlanChunk, make_rows
from service.quality.schema import Margins, Measured, Plan, PlanResult

#: the most timed chunks of a concurrency
_TIMED_CHUNKS = 32
_WARM_UP_TOKENS = 16

_HOW: Mapping[Clock, str] = {
    "cpu": "tokens a second of CPU time of one thread; other work on the machine does not change it",
    "wall": "tokens a second of wall-clock time; the machine must have no other work",
}


@dataclass(frozen=True, slots=True)
class Scope:
    """The size of a measurement. `concurrency`, `temperatures` (above 0): ascending. `timed`: timed prompts."""

    concurrency: tuple[int, ...]
    timed: int
    max_new_tokens: int
    temperatures: tuple[float, ...] = ()

    def check(self, prompts: int) -> None:
        """SettingsError where there are too few prompts: two chunks of them are timed at least."""
        timed = min(prompts, self.timed)
        if max(self.concurrency) > timed // 2:
            raise SettingsError(
                f"concurrency is {max(self.concurrency)}, allowed is at most half the timed prompts, {timed // 2}: "
                f"timed are {timed}, in two chunks at least",
                param="concurrency",
            )

    def timed_starts(self, together: int, prompts: int) -> range:
        """The starts of the timed chunks, all of them whole."""
        chunks = min(_TIMED_CHUNKS, min(self.timed, prompts) // together)
        return range(0, chunks * together, together)


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

    def rows(self, notebook: Notebook, clock: Clock) -> list[PlanResult]:
        timed = self._scope.timed_starts(max(self._scope.concurrency), len(self._tasks)).stop
        return make_rows(list(self._plans.values()), notebook.records.values(), clock, timed)

    @property
    def jobs(self) -> list[PlanChunk]:
        return [*self._greedy(), *self._sampled()]

    def run(self, notebook: Notebook) -> Iterator[PlanChunk]:
        """Does the jobs that the notebook lacks; yields every job when the notebook has it."""
        self._engine.prepare()
        for plan in self._plans.values():  # to warm up
            self._engine.generate([self._request(plan, 0, _WARM_UP_TOKENS)])
        for job in self._greedy():
            if job not in notebook.records:
                notebook.add(self.measure(job))
            yield job
        margin = Margins().fast  # of plans that lose more at temperature 0, no preset allows any, so they end here
        allowed = {row.plan.name for row in self.rows(notebook, "wall") if row.difference >= -margin}
        for job in self._sampled():
            if job not in notebook.records and job.plan in allowed:
                notebook.add(self.measure(job))
            yield job

    def _greedy(self) -> Iterator[PlanChunk]:
        """The timed prompts at every concurrency, then the others at the highest, for plans of unknown accuracy."""
        starts = range(0)
        for together in self._scope.concurrency:
            starts = self._scope.timed_starts(together, len(self._tasks))
            for start in starts:
                yield from (PlanChunk(plan, together, start) for plan in self._plans)
        for start in range(starts.stop, len(self._tasks), together):
            yield from (PlanChunk(plan, together, start) for plan in self._lossy_and_static())

    def _sampled(self) -> Iterator[PlanChunk]:
        """All prompts at the temperatures above 0, for static and plans of unknown accuracy."""
        together = max(self._scope.concurrency)
        for temperature in self._scope.temperatures:
            for start in range(0, len(self._tasks), together):
                yield from (PlanChunk(plan, together, start, temperature) for plan in self._lossy_and_static())

    def _lossy_and_static(self) -> list[str]:
        static, *further = self._plans
        return [static, *(name for name in further if not is_lossless(self._plans[name]))]

    def measure(self, job: PlanChunk) -> ChunkRecord:
        chunk = range(job.start, min(len(self._tasks), job.start + job.together))
        plan, tokens = self._plans[job.plan], self._scope.max_new_tokens
        requests = [self._request(plan, index, tokens, SamplingParams(job.temperature, seed=index)) for index in chunk]
        cpu, wall = time.thread_time(), time.perf_counter()
        completions = self._engine.generate(requests)
        cpu_s, wall_s = time.thread_time() - cpu, time.perf_counter() - wall
        forwards = [completion.stats.forwards for completion in completions]
        return ChunkRecord(
            job,
            right=[self._tasks[index].is_right(c.token_ids) for index, c in zip(chunk, completions, strict=True)],
            answers=[hashlib.sha256(repr(c.token_ids).encode()).hexdigest()[:16] for c in completions],
            tokens=sum(completion.stats.decoded_tokens for completion in completions),
            forwards=sum(count.denoise + count.verify for count in forwards),
            cpu_s=cpu_s,
            wall_s=wall_s,
        )

    def _request(
        self, plan: DecodingMode, index: int, tokens: int, sampling: SamplingParams | None = None
    ) -> GenerationRequest:
        prompt, stop = self._tasks[index].prompt_token_ids, frozenset(self._engine.model.eos_token_ids)
        return GenerationRequest(str(index), prompt, plan, sampling or SamplingParams(), tokens, stop)


def engine_for(
    checkpoint: Checkpoint, tasks: Sequence[PromptTask], scope: Scope, deps: EngineDeps | None = None
) -> Engine:
    """An engine for the longest prompts at the highest concurrency. Without a prefix cache, plans pay their prefill."""
    longest = max(len(task.prompt_token_ids) for task in tasks) + scope.max_new_tokens
    tokens = max(scope.concurrency) * (longest + 2 * checkpoint.config.block_size)
    limits = EngineConfig(max(scope.concurrency), kv_cache_tokens=tokens, prefix_cache=False)
    return Engine(checkpoint, limits, deps=deps)


def circumstances(checkpoint: Checkpoint, scope: Scope, prompts: Mapping[str, Any]) -> Measured:
    """The circumstances of a measurement. `prompts`: the fields that name the prompts and the scorer."""
    device, threads = checkpoint.device, torch.get_num_threads()
    alone = device.type == "cpu" and threads == 1 and checkpoint.shard.size == 1
    clock: Clock = "cpu" if alone else "wall"
    return Measured(
        at=datetime.now(UTC).date().isoformat(),
        model=display_name(checkpoint.path),
        max_new_tokens=scope.max_new_tokens,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        dtype=str(checkpoint.dtype).removeprefix("torch."),
        threads=threads,
        clock=clock,
        concurrency=list(scope.concurrency),
        temperatures=[0.0, *scope.temperatures],
        how=f"{_HOW[clock]}; prefill included, plans in turns, {scope.timed} prompts; intervals are 95 %",
        **prompts,
    )
