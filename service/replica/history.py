"""The denoising history of a request as JSON: one object per step. Positions are relative to the block."""

from __future__ import annotations

from collections.abc import Iterable

from service.decode.block import Pick, Step
from service.engine.request import BlockEvent, BlockProgress
from service.wire import TraceStep


def trace_steps(event: BlockEvent | BlockProgress) -> tuple[TraceStep, ...]:
    """The steps of an event's block."""
    return tuple(_step(event.index, step) for step in event.steps)


def _step(block: int, step: Step) -> TraceStep:
    return {
        "block": block,
        "kind": step.kind,
        "revealed": _picks(step.revealed),
        "revoked": list(step.remasked),
        "drafted": _picks(step.drafted),
        "accepted": step.accepted,
    }


def _picks(picks: Iterable[Pick]) -> list[tuple[int, int, float]]:
    return [(pick.position, pick.token, round(pick.confidence, 6)) for pick in picks]
