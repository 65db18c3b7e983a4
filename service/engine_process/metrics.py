"""The metrics of an engine's steps and events, counted in its process into `Sums`. The replica adds these sums."""

from collections import Counter
from collections.abc import Sequence

from service.decode.block import Step
from service.engine.observer import StepReport
from service.engine.request import BlockEvent, GenerationRequest
from service.errors import OutputsNotFinite
from service.telemetry.metrics import Registry, Sums

#: the sources of revealed tokens
SOURCES = ("backbone", "mrp", "draft", "grammar")


class EngineMetrics:
    """Implements the engine's `Observer`: counts into `sink`."""

    def __init__(self, sink: Registry | Sums) -> None:
        self._sink = sink
        self._last_block: dict[str, float] = {}
        self._finished_blocks = 0  # since the last step

    def on_step(self, report: StepReport) -> None:
        self._sink.observe("engine_step_seconds", report.seconds)
        if report.rows:
            self._sink.observe("rows_per_forward", report.rows)
        for kind, count in report.forwards.items():
            self._sink.add("forwards_total", count, kind=kind)
        if report.eager_forwards:
            self._sink.add("eager_forwards_total", report.eager_forwards)
        if report.cache.looked_up:
            self._sink.add("prefix_cache_queries_total", report.cache.looked_up)
            self._sink.add("prefix_cache_hits_total", report.cache.cached)
        if report.cache.preemptions:
            self._sink.add("num_preemptions_total", report.cache.preemptions)
        if report.cache.recomputed:
            self._sink.add("preempted_tokens_recomputed_total", report.cache.recomputed)
        # vLLM counts the step that commits a canvas. Here the next block's first forward writes a finished block's KV.
        steps = report.forwards.get("denoise", 0) + report.forwards.get("verify", 0) + self._finished_blocks
        self._finished_blocks = 0
        self._sink.add("vllm:diffusion_num_denoising_steps_total", steps)
        self._sink.add("vllm:diffusion_num_canvas_positions_total", steps * report.block_size)

    def on_event(self, request: GenerationRequest, event: BlockEvent, steps: Sequence[Step]) -> None:
        mode = request.mode.name
        previous = self._last_block.pop(request.request_id, None)
        if event.finish_reason is None:
            self._last_block[request.request_id] = event.stats.total_s
        begins = previous is None and not request.num_continued  # the request's first block on any replica
        if begins and event.stats.forwards.denoise + event.stats.forwards.verify:
            self._sink.add("prompt_tokens_total", len(request.prompt_token_ids))
        if isinstance(event.error, OutputsNotFinite):
            self._sink.add("corrupted_requests_total")
        if event.token_ids:
            self._finished_blocks += 1
            self._sink.add("generation_tokens_total", len(event.token_ids), mode=mode)
            self._sink.add("vllm:diffusion_num_committed_tokens_total", len(event.token_ids))
        if event.token_ids and begins:
            arrived_to_block = request.waited_s + event.stats.total_s
            self._sink.observe("time_to_first_block_seconds", arrived_to_block, mode=mode)
        elif event.token_ids and previous is not None:
            self._sink.observe("inter_block_latency_seconds", event.stats.total_s - previous, mode=mode)
        self._steps(mode, steps)

    def _steps(self, mode: str, steps: Sequence[Step]) -> None:
        """Sums first: an addition to a metric takes longer than a step of this loop."""
        revealed: Counter[str] = Counter()
        accepted: Counter[int] = Counter()
        revoked = drafted = 0
        for step in steps:
            proposed = step.proposed
            revealed["mrp" if step.kind == "mrp" else "draft"] += proposed
            revealed["grammar" if step.kind == "forced" else "backbone"] += len(step.revealed) - proposed
            revoked += len(step.remasked)
            drafted += len(step.drafted)
            accepted[step.accepted] += 1
        for source, count in revealed.items():
            self._sink.add("tokens_revealed_total", count, mode=mode, source=source)
        self._sink.add("tokens_remasked_total", revoked)
        self._sink.add("spec_decode_num_draft_tokens_total", drafted)
        self._sink.add("spec_decode_num_accepted_tokens_total", sum(n * count for n, count in accepted.items()))
        for position in range(max(accepted, default=0)):
            deep = sum(count for length, count in accepted.items() if length > position)
            self._sink.add("spec_decode_num_accepted_tokens_per_pos_total", deep, position=str(position))
