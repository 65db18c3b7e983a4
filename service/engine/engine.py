"""The engine: continuous batching of requests of any modes, one backbone forward a step.

It is synchronous and single-threaded; `thread.py` runs it on a thread. An unexpected error in the bookkeeping of one
request ends only that request. An error in a forward ends the engine. Use as a library:

    engine = Engine(load_checkpoint("service/demo"))
    [completion] = engine.generate([GenerationRequest("1", prompt_token_ids, Speculative(4))])
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from service.engine.config import EngineConfig
from service.engine.drafting.costs import StepCosts, measure
from service.engine.drafting.planner import DraftPlanner
from service.engine.forward.model_forward import ExecutionConfig, ModelForward, ShapePolicy
from service.engine.forward.oom_backoff import OomBackoff
from service.engine.forward.partition import deterministic_partition
from service.engine.forward.profiler import StepProfiler
from service.engine.forward.runner import ModelRunner, forward_clock
from service.engine.memory_plan import ForwardMemory
from service.engine.observer import EngineState, Observer, SafeObserver, StepReport
from service.engine.page_forecast import PageForecast
from service.engine.preemption_log import PreemptionLog
from service.engine.prefix_cache import PrefixCache
from service.engine.request import (
    BlockEvent,
    BlockProgress,
    Completion,
    FinishReason,
    ForwardKind,
    GenerationRequest,
    Stats,
    validate,
)
from service.engine.running_request import RunningRequest
from service.engine.scheduler import Scheduler, Waiting
from service.engine.step import RunningStep, end_alone
from service.errors import InvalidRequest, OutOfMemory, SettingsError, WeightsChanged
from service.model.checkpoint import Checkpoint
from service.model.device import is_out_of_memory, synchronize, use_device

_log = logging.getLogger(__name__)


class Ranks(Protocol):
    """The other processes of a tensor-parallel engine, each with a part of the checkpoint (`service/parallel`)."""

    def networks(
        self, checkpoint: Checkpoint, num_pages: int, shapes: ShapePolicy, execution: ExecutionConfig
    ) -> ModelForward:
        """The networks over all ranks. `checkpoint`: the part of this process."""


@dataclass(frozen=True, slots=True)
class EngineDeps:
    """The dependencies of an engine that a caller may provide, such as a clock of a test or a runner that fails."""

    clock: Callable[[], float] = time.monotonic
    #: costs of forwards for `mrp_steps: "auto"` and for several tenants; None: measured for the first such request
    costs: StepCosts | None = None
    #: makes the runner, with the arguments of `ModelRunner`
    runner: Callable[..., ModelRunner] = ModelRunner
    #: None where this process has the whole checkpoint
    ranks: Ranks | None = None
    #: makes the forecast of KV pages
    forecast: Callable[[], PageForecast] = PageForecast


class Engine:
    """Decodes requests with one checkpoint. Not thread-safe. The caller of a `halted` engine makes no step."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig | None = None,
        observer: Observer | None = None,
        deps: EngineDeps | None = None,
    ) -> None:
        config, deps = config or EngineConfig(), deps or EngineDeps()
        self.model, self.max_running = checkpoint.config, config.max_running
        size = self.model.block_size
        if config.max_rows < size + 2:
            raise SettingsError(f"max_rows is {config.max_rows}, at least {size + 2} (block size + 2) are needed")
        self._deterministic = config.deterministic
        partition = deterministic_partition(checkpoint, config.attention) if config.deterministic else None
        num_pages = config.kv_cache_tokens // size
        self._pages = PrefixCache(num_pages, config.prefix_cache)
        candidates = config.candidates(self.model.vocab_size)
        networks = deps.ranks.networks if deps.ranks else ModelForward
        execution = ExecutionConfig(
            config.attention,
            config.cuda_graphs,
            networks=networks,
            max_running=config.max_running,
            kv_cache_dtype=config.kv_cache_dtype,
        )
        use_device(checkpoint.device)
        runner = deps.runner(checkpoint, num_pages, partition, candidates, execution)
        self._runner, self._max_rows = runner, config.max_rows
        has_mrp, clock = checkpoint.mrp is not None, forward_clock(checkpoint.device, checkpoint.shard.size)
        config = replace(config, async_scheduling=config.goes_ahead(checkpoint.device.type) and runner.keeps_states)
        measured = partial(measure, runner, config.max_rows, has_mrp, clock, ahead=bool(config.async_scheduling))
        self._planner = DraftPlanner(_usable(deps.costs, has_mrp) or measured, config.max_rows, size, deps.clock)
        prompt_rows = config.prefill_tokens(checkpoint.device.type) // size
        self._scheduler = Scheduler(self._pages, self.model, config, self._planner, prompt_rows)
        self._scheduler.forecast = deps.forecast()
        self._observer = SafeObserver(observer)
        self._clock, self._preemption_log = deps.clock, PreemptionLog(deps.clock)
        self.version, self.mrp_version = 0, 0 if has_mrp else None  # of the weights; `update_weights` sets them
        self.queue_held = False  # whether waiting requests stay in the queue
        self.paused = False  # whether running requests stay as they are, too
        self.sleep_level = 0  # 0 while the KV cache has memory
        self._prepared = False
        self.progress: list[BlockProgress] = []  # the steps of the last `step`, for requests with `report_steps`
        self._backoff = OomBackoff(runner)
        #: the steps under way, the oldest first, and the most of them
        self._steps, self._max_steps = deque[RunningStep](), 2 if config.async_scheduling else 1
        self._profiler = StepProfiler(config.torch_profiler_dir) if config.torch_profiler_dir else None
        whole_blocks = min(self.model.max_positions // size, self._pages.capacity) * size
        self.max_model_len = min(config.max_model_len or whole_blocks, whole_blocks)

    def prepare(self) -> None:
        """Warms up all forwards, then measures their costs. After that no request waits for either."""
        self.warm_up()
        self.measure_costs()

    def warm_up(self) -> None:
        """Compiles the kernels and captures the graphs of all forwards, once."""
        if not self._prepared:
            self._runner.prepare(self._max_rows)
            self._prepared = True

    def measure_costs(self) -> None:
        self._planner.costs()

    def measure_bytes(self) -> ForwardMemory:
        """The memory of all forwards on CUDA, by a sample of the graphs. The engine is not used after that."""
        return self._runner.measure_bytes(self._max_rows)

    def use_device(self) -> None:
        """Makes the engine's device the current one of the calling thread. A thread that steps the engine calls it."""
        use_device(self._runner.device)

    def validate(self, request: GenerationRequest) -> None:
        """InvalidRequest (or a subclass) if this engine can never serve the request."""
        validate(request, self.model, self.max_model_len, deterministic=self._deterministic)

    def submit(self, request: GenerationRequest) -> None:
        self.validate(request)
        self.enqueue(request)

    def enqueue(self, request: GenerationRequest) -> None:
        self._scheduler.enqueue(request, self._clock() - request.delay_s)

    def abort(self, request_id: str) -> None:
        """Ends a request and frees its pages at once. Unknown or finished ids are ignored."""
        waiting = self._scheduler.drop_waiting(request_id)
        if waiting is not None:
            self._observer.on_event(waiting.request, BlockEvent(request_id, 0, (), Stats(), "abort"), ())
        for running in list(self._scheduler.started):
            if running.request.request_id == request_id:
                running.expire("abort")
                self._collect([running])

    def state(self) -> EngineState:
        scheduler, pages = self._scheduler, self._pages
        waiting = len(scheduler.waiting) + len(scheduler.preempted)
        counts = len(scheduler.running), waiting, pages.num_used, pages.capacity
        return EngineState(*counts, self.paused, self.sleep_level)

    @property
    def has_work(self) -> bool:
        return bool(self._scheduler.started or self._scheduler.waiting)

    @property
    def is_idle(self) -> bool:
        """Whether no request runs or is preempted."""
        return not self._scheduler.started

    @property
    def halted(self) -> bool:
        return self.paused or self.sleep_level > 0

    def abort_running(self) -> list[str]:
        request_ids = [running.request.request_id for running in self._scheduler.started]
        for request_id in request_ids:
            self.abort(request_id)
        return request_ids

    def update_weights(self, apply: Callable[[], None], version: int, mrp_version: int | None = None) -> None:
        """Lets `apply` change the weights, and drops the KV of the old ones. No request may run.

        `mrp_version`: the version of MRP; None: `version`. An error of `apply` is the end of the engine.
        """
        self._check_idle("the weights are to be updated")
        apply()
        self._pages.clear()
        self.version = version
        if self.mrp_version is not None:
            self.mrp_version = version if mrp_version is None else mrp_version

    def reset_prefix_cache(self) -> None:
        """Drops the KV of prompts and answers that no running request holds."""
        self._pages.drop_idle()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def sleep(self, level: int) -> None:
        """Gives the memory of the KV cache back. No request may run. `level`: 1, or 2 if the weights follow."""
        self._check_idle("the engine is to sleep")
        if not self.sleep_level:
            self._pages.clear()
            self._runner.model.release_cache()
        self.sleep_level = level

    def wake_up(self) -> None:
        """Takes the memory of the KV cache again, and captures graphs. OutOfMemory: the engine sleeps on."""
        self._runner.model.restore_cache()
        try:
            if self._prepared:
                self._runner.prepare(self._max_rows)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._runner.model.release_cache()
            raise OutOfMemory("the device has no memory for forwards", retry_after=1.0) from None
        self.sleep_level = 0

    def _check_idle(self, reason: str) -> None:
        if not self.is_idle:
            raise AssertionError(f"{reason} while requests run")
        synchronize(self._runner.device)  # a forward may be under way whose requests have ended

    def start_queued(self) -> None:
        if self.halted:
            return
        self._scheduler.resume()
        if self.queue_held:
            return
        for running in self._scheduler.start_queued():
            running.stats.begin(self._clock, self.version, self.mrp_version)
            try:
                if running.request.version not in {None, self.version}:
                    raise WeightsChanged(
                        f"weights of version {running.request.version} began this answer, version {self.version} "
                        "answers now; send the request again",
                        retry_after=1.0,
                    )
                running.start()
            except Exception as error:  # noqa: BLE001 - any error here concerns only this request
                end_alone(running, error)

    def step(self) -> list[BlockEvent]:
        """Begins steps of the running requests, and finishes the oldest one that is under way."""
        if self._profiler is not None:
            self._profiler.begin_step()
        start, model = self._clock(), self._runner.model
        events = self.expire()
        if not self._scheduler.running:
            self._planner.idle(min(self.max_running, len(self._scheduler.waiting)))
        self.start_queued()
        num_rows = self._begin_steps()
        forwards: Counter[ForwardKind] = Counter()
        if self._steps:
            self._steps.popleft().finish(forwards)
        self._scheduler.publish()
        events += self._collect(list(self._scheduler.started))
        seconds = self._clock() - start
        eager_forwards, model.eager_forwards = model.eager_forwards, 0
        counts, state = self._scheduler.pop_counts(), self.state()
        self._preemption_log.add(counts.preemptions, counts.recomputed)
        size = self.model.block_size
        report = StepReport(seconds, num_rows, size, forwards, state, counts, eager_forwards=eager_forwards)
        self._observer.on_step(report)
        return events

    def _begin_steps(self) -> int:
        """Begins the next step, and one ahead of its results. -> the number of rows."""
        num_rows = 0
        while len(self._steps) < self._max_steps and (plan := self._scheduler.plan(ahead=bool(self._steps))):
            self._steps.append(RunningStep(plan, self._backoff, self._planner))
            self._scheduler.publish()
            num_rows += sum([len(rows) for _, rows in plan])
        return num_rows

    def generate(self, requests: Iterable[GenerationRequest]) -> list[Completion]:
        """Decodes requests together and returns their completions in order. Blocks until all are done.

        InvalidRequest if two requests have the same id, or if submitted requests are not done. OutOfMemory, after all
        are done, if a request ended by that.
        """
        requests = list(requests)
        events: dict[str, list[BlockEvent]] = {request.request_id: [] for request in requests}
        if len(events) != len(requests):
            raise InvalidRequest("two requests have the same request_id", param="request_id")
        if self.has_work:
            raise InvalidRequest("the engine still decodes submitted requests; call step until has_work is false")
        try:
            for request in requests:
                self.submit(request)
            while self.has_work:
                for event in self.step():
                    events[event.request_id].append(event)
        except BaseException:  # a refused request, or an interrupt: no request may stay for the next call
            for request in requests:
                self.abort(request.request_id)
            raise
        return [_completion(events[request.request_id]) for request in requests]

    def expire(self) -> list[BlockEvent]:
        now = self._clock()
        self.progress = []
        events: list[BlockEvent] = []
        for waiting in [waiting for waiting in self._scheduler.waiting if _is_late(waiting, now)]:
            self._scheduler.waiting.remove(waiting)
            age = now - waiting.submitted
            events.append(BlockEvent(waiting.request.request_id, 0, (), Stats(queue_s=age, total_s=age), "timeout"))
            self._observer.on_event(waiting.request, events[-1], ())
        limited = [running for running in self._scheduler.started if running.request.timeout_s is not None]
        late = [running for running in limited if _is_late(running, now)]
        for running in late:
            running.expire("timeout")
        return events + self._collect(late)

    def _collect(self, requests: list[RunningRequest]) -> list[BlockEvent]:
        events: list[BlockEvent] = []
        for running in requests:
            stats = running.stats
            if stats.progress:
                self.progress += stats.progress
                stats.progress = []
            if stats.events:
                for event, steps in stats.events:
                    self._observer.on_event(running.request, event, steps)
                    events.append(event)
                stats.events = []
            if running.finish_reason is not None:
                self._scheduler.remove(running)
        if not self._scheduler.running:
            self._steps.clear()  # nobody needs their results
        return events


def _is_late(entry: Waiting | RunningRequest, now: float) -> bool:
    return entry.request.timeout_s is not None and now - entry.submitted >= entry.request.timeout_s


def _completion(events: list[BlockEvent]) -> Completion:
    last = events[-1]
    if last.error is not None:
        raise last.error
    reason: FinishReason = last.finish_reason or "abort"
    tokens = tuple(token for event in events for token in event.token_ids)
    return Completion(last.request_id, tokens, reason, last.stats, tuple(events), last.constraint_met)


def _usable(costs: StepCosts | None, has_mrp: bool) -> StepCosts | None:
    """Given costs without what the checkpoint does not have, so that no plan needs it."""
    return costs if costs is None or has_mrp else replace(costs, mrp=None)
