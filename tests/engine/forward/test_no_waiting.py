"""A pass asks the device for nothing before its one copy back: whatever it asks makes the host wait for all kernels.

On a CPU nothing waits, so the operations that would wait on CUDA are looked for. `tests/engine/test_gpu.py` asks CUDA.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode

from service.decode.block import MASKED, Block
from service.engine.forward.model_forward import ExecutionConfig
from service.engine.forward.partition import BatchPartition, FixedShapes
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner
from service.engine.logit_adjuster import LogitAdjuster
from service.engine.request import GenerationRequest, LogprobsRequest, SamplingParams
from tests.tiny import tiny_checkpoint

#: operations whose result, or its shape, the host has to know
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "item", "unique2", "_unique2"}


class Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.waited: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in {"index", "index_put_", "index_put"} else ()
        if name in WAITING or any(index is not None and index.dtype == torch.bool for index in indices):
            self.waited.append(name)
        return func(*args, **(kwargs or {}))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    copies: list[torch.Size] = []

    def watched(take: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
        def taken(tensor: torch.Tensor) -> Any:
            copies.append(tensor.shape)
            return take(tensor)

        return taken

    for name in ("tolist", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, watched(getattr(torch.Tensor, name)))
    return copies


def penalized(row: Row) -> Row:
    sampling = SamplingParams(
        presence_penalty=1.0, logit_bias={3: 2.0}, min_tokens=2, bad_words_token_ids=((4,), (5, 6))
    )
    request = GenerationRequest("r", (1,), sampling=sampling, stop_token_ids=frozenset([7]))
    return replace(row, adjustments=LogitAdjuster(request, 0).adjustments(row.state, None))


@pytest.mark.parametrize("grouping", [None, FixedShapes(3, 4)], ids=["together", "deterministic"])
def test_a_pass_waits_once(attention: str, grouping: BatchPartition | None, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tiny_checkpoint(dtype=torch.float32)
    runner = ModelRunner(checkpoint, 8, grouping, 8, ExecutionConfig(attention))
    state = Block((MASKED, 5, MASKED, MASKED))
    rows = [
        Row(Block((1, 2, 3, 4)), 0, pages := [3, 4], writes_kv=True),
        Row(state, 1, pages, writes_kv=False, sampling=SamplingParams(), rescore=(1,), drafts=True),
        Row(state, 1, pages, writes_kv=False, sampling=SamplingParams(0.7, 0.9, 5, seed=3), entropy=True),
        Row(state, 0, [6], writes_kv=False, sampling=SamplingParams(1.3, seed=8), drafts=True),
        penalized(Row(state, 0, [7], writes_kv=False, sampling=SamplingParams(1.3, seed=8, min_p=0.1))),
    ]
    copies = counted(monkeypatch)
    with Watch() as watch:
        readings = runner.begin("backbone", rows)()
    assert (watch.waited, len(copies)) == ([], 1)
    drafted = [replace(row, anchor=reading.handle) for row, reading in zip(rows, readings, strict=True)]
    assert [row.anchor.has_candidates for row in drafted] == [False, True, False, True, False]
    copies.clear()
    with Watch() as watch:
        runner.begin("mrp", drafted)()
    assert (watch.waited, len(copies)) == ([], 1)


def test_log_probabilities_that_are_asked_for_come_in_one_more_copy(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = ModelRunner(tiny_checkpoint(dtype=torch.float32), 8, None, 8, ExecutionConfig(attention))
    state = Block((MASKED, 5, MASKED, MASKED))
    rows = [
        Row(state, 0, [3], writes_kv=False, sampling=SamplingParams(0.7, seed=3), logprobs=LogprobsRequest(4, (1, 2))),
        Row(state, 0, [4], writes_kv=False, sampling=SamplingParams(), logprobs=LogprobsRequest(0, (7,))),
        Row(state, 0, [5], writes_kv=False, sampling=SamplingParams()),
    ]
    copies = counted(monkeypatch)
    with Watch() as watch:
        first, second, third = runner.begin("backbone", rows)()
    assert (watch.waited, len(copies)) == ([], 2)
    collected = [[pick.logprobs for pick in reading.picks] for reading in (first, second, third)]
    assert [(len(logprobs.top), len(logprobs.by_id)) for logprobs in collected[0] if logprobs] == [(4, 2)] * 3
    assert [(len(logprobs.top), len(logprobs.by_id)) for logprobs in collected[1] if logprobs] == [(0, 1)] * 3
    assert collected[2] == [None] * 3
