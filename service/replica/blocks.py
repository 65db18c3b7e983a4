"""Turns the block events of one request into the chunks of its answer: text, stop texts, statistics, the ending.

An answer that another replica has begun continues where that replica stopped.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from service.decode.block import Pick, Step
from service.decode.step_map import StepMap, TokenStep
from service.engine.request import BlockEvent, BlockProgress, FinishReason, Stats
from service.messages.wire import Chunk, Ending, Progress, ReplicaRequest, TraceStep, joined
from service.text.detokenizer import IdLogprobs, TextStream, TokenTextStream


@dataclass(slots=True)
class AnswerBlocks:
    """The answer to one request."""

    request: ReplicaRequest
    prompt_tokens: int
    waited_s: float  # seconds from its arrival at the ingress to the engine
    text: TextStream
    token_texts: TokenTextStream | None  # names the tokens, None if the request does not need names
    text_of: Callable[[int], str]  # the text of a token id
    block_size: int
    all_token_ids: list[int] | None = None  # the prompt's and the answer's so far; None if nobody needs them
    stats: Stats = field(init=False)  # the statistics so far, over all replicas
    ending: Ending | None = field(init=False, default=None)  # set by the last event
    _ignored: tuple[str, ...] = field(init=False, default=())
    _num_tokens: int = field(init=False)
    _steps: StepMap = field(init=False)
    _held: list[Chunk] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        resume = self.request.resume
        self.text.push(resume.token_ids)  # this text is already sent, except the end that is held back again
        if self.token_texts is not None:
            self.token_texts.push(resume.token_ids)
        self.stats = resume.stats
        self._num_tokens = len(resume.token_ids)
        self._steps = StepMap(resume.num_steps)

    def note_ignored(self, keywords: tuple[str, ...]) -> None:
        """Notes the keywords of the constraint that are not enforced. The ingress has told the request's own ones."""
        requests = self.request.constraint.ignored if self.request.constraint is not None else ()
        self._ignored = tuple(keyword for keyword in keywords if keyword not in requests)

    def push(self, event: BlockEvent) -> Chunk | None:
        """The chunk of the last `stream_interval` events, None if more are to come. Not to call after the ending."""
        if (chunk := self._chunk(event)) is not None:
            self._held.append(chunk)
        if not self._held or (len(self._held) < self.request.stream_interval and self.ending is None):
            return None
        held, self._held = self._held, []
        return (
            held[0]
            if len(held) == 1 and held[0].ending is self.ending
            else replace(held[-1], stats=self.stats, ending=self.ending, **joined(held))
        )

    def _chunk(self, event: BlockEvent) -> Chunk | None:
        piece, token_ids = self.text.push(event.token_ids)
        reason = "stop" if self.text.stopped else event.finish_reason
        if reason is not None:
            piece += self.text.finish()
        self.stats = self._stats(event.stats)
        self._num_tokens += len(token_ids)
        if self.all_token_ids is not None:
            self.all_token_ids += token_ids
        step_map = (
            self._steps.add(event.steps) if self.request.return_step_map or self.request.return_token_texts else []
        )
        stop_token = None
        if event.finish_reason == "stop" and not self.text.stopped and step_map:
            stop_token = step_map[len(event.token_ids)]
        self.ending = self._ending(reason, event.constraint_met, stop_token)
        if before := self.request.resume.num_blocks:
            event = replace(event, index=event.index + before)
        trace = trace_steps(event) if self.request.return_trace else ()
        if not (piece or token_ids or trace):
            return None
        count = self.request.top_logprobs
        token_texts = (
            () if self.token_texts is None else self.token_texts.push(token_ids, _likeliest(event.steps, count))
        )
        return Chunk(
            index=event.index,
            text=piece,
            token_ids=token_ids,
            stats=self.stats,
            trace=trace,
            ending=self.ending,
            token_texts=token_texts,
            prompt_tokens=self.prompt_tokens,
            version=event.version,
            step_map=tuple(step_map[: len(token_ids)]),
            ignored=self._ignored,
        )

    def progress(self, event: BlockProgress) -> Progress:
        event = replace(event, index=event.index + self.request.resume.num_blocks)
        picks = (pick for step in event.steps for pick in (*step.revealed, *step.drafted))
        texts = {token: self.text_of(token) for token in {pick.token for pick in picks}}
        held = 0 if event.index else self.prompt_tokens % self.block_size
        return Progress(event.index, event.first, trace_steps(event), texts, held, self.waited_s + event.total_s)

    def _stats(self, stats: Stats) -> Stats:
        rest, resume = stats.later_by(self.waited_s), self.request.resume
        return resume.stats.continued(rest) if resume.num_blocks else rest

    def _ending(self, reason: FinishReason | None, met: bool | None, stop_token: TokenStep | None) -> Ending | None:
        if reason is None:
            return None
        if self.request.constraint is not None and self.text.stopped:
            met = False  # a stop text cut the answer
        return Ending(
            finish_reason=reason,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self._num_tokens,
            stats=self.stats,
            constraint_met=met,
            stop_text=self.text.stopped_by,
            stop_token=stop_token,
        )


def _likeliest(steps: Sequence[Step], count: int) -> list[IdLogprobs]:
    """For each filled position, in order: the `count` likeliest tokens of the prediction that filled it last."""
    filled: dict[int, IdLogprobs] = {}
    for step in steps:
        filled = step.move(filled)
        for pick in step.revealed:
            filled[pick.position] = pick.logprobs.top[:count] if pick.logprobs else ()
    return [filled[position] for position in sorted(filled)]


def trace_steps(event: BlockEvent | BlockProgress) -> tuple[TraceStep, ...]:
    """The denoising history of an event's block as JSON, an object for each step. Positions are in the block."""
    return tuple(_trace_step(event.index, step) for step in event.steps)


def _trace_step(index: int, step: Step) -> TraceStep:
    traced: TraceStep = {
        "block": index,
        "kind": step.kind,
        "revealed": _picks(step.revealed),
        "revoked": list(step.remasked),
        "drafted": _picks(step.drafted),
        "accepted": step.accepted,
    }
    return {**traced, "moved": list(step.moved)} if step.moved else traced


def _picks(picks: Iterable[Pick]) -> list[tuple[int, int, float]]:
    return [(pick.position, pick.token, round(pick.confidence, 6)) for pick in picks]
