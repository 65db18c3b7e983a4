"""Tensor parallelism with CUDA graphs on two virtual devices. Sums between the ranks are nodes of the graphs."""

from dataclasses import replace

import pytest
import torch

from service.engine import Engine, EngineDeps
from service.engine_process.core import load_core
from service.model import LoadOptions
from service.parallel import TensorParallelExecutor
from service.settings.settings import Settings
from tests.engine.helpers import FREE, Recorder
from tests.tiny import GOLDEN, GOLDEN_NAMES
from tests.vcuda.decoding import ALL_ON, decode_golden, waits
from tests.vcuda.device import Counts
from tests.vcuda.ranks import REFUSING, two_ranks, virtual_ranks

NAME = GOLDEN_NAMES[0]


def engine_of(ranks: TensorParallelExecutor, max_rows: int) -> Engine:
    checkpoint = ranks.load(GOLDEN / NAME, LoadOptions(torch.float32, "cuda"))
    config = replace(ALL_ON, max_rows=max_rows, draft_candidates=8)
    return Engine(checkpoint, config, deps=EngineDeps(costs=FREE, ranks=ranks))


def test_golden_decodes_with_graphs_on_two_ranks(device):
    with two_ranks(device) as ranks:
        engine = engine_of(ranks, 12)
        backbone, mrp = engine.model, engine.model.mrp
        engine.prepare()
        sums = {sum(node.name == "all_reduce" for node in graph.operations) for graph in device.graphs}
        device.counts = Counts()
        decode_golden(engine, NAME, 1)
    assert mrp is not None
    assert sums == {2 * backbone.num_layers, 2 * mrp.num_layers}
    assert (device.counts.captures, device.counts.kernels["all_reduce"], waits(device.counts)) == (0, 0, [])
    assert device.counts.replays > 0


def test_a_capture_that_fails_on_a_rank_is_left_out_on_all(device, monkeypatch, caplog):
    monkeypatch.setenv(REFUSING, "1")
    with two_ranks(device) as ranks:
        engine = engine_of(ranks, 64)
        decode_golden(engine, NAME, 1)
    assert (device.counts.captures > 0, device.counts.replays, len(device.graphs)) == (True, 0, 0)
    assert "another rank has failed" in caplog.text


@pytest.mark.slow
def test_the_cache_gets_the_memory_that_graphs_of_a_rank_leave(device):
    device.total_bytes = 40 * 2**20
    settings = Settings(model=str(GOLDEN / NAME), device="cuda", dtype="float32", max_rows=12, tensor_parallel_size=2)
    with virtual_ranks(device):
        core = load_core(settings, Recorder(), EngineDeps(costs=FREE))
        device.peak_bytes = device.live_bytes
        decode_golden(core.engine, NAME, 1)
        core.close()
    assert 0.7 * device.total_bytes <= device.peak_bytes <= 0.9 * device.total_bytes
    assert device.counts.captures == 2 * len(device.graphs) > 0
