"""Tensor parallelism with CUDA graphs on two virtual devices. Sums between the ranks are nodes of the graphs."""

from dataclasses import replace

import torch

from service.engine import Engine, EngineDeps
from service.model import LoadOptions
from tests.engine.helpers import FREE_ROWS
from tests.tiny import GOLDEN, GOLDEN_NAMES
from tests.vcuda.decoding import ALL_ON, decode_golden, waits
from tests.vcuda.device import Counts
from tests.vcuda.ranks import REFUSING, two_ranks

NAME = GOLDEN_NAMES[0]


def engine_of(ranks, max_rows):
    checkpoint = ranks.load(GOLDEN / NAME, LoadOptions(torch.float32, "cuda"))
    config = replace(ALL_ON, max_rows=max_rows, draft_candidates=8)
    return Engine(checkpoint, config, deps=EngineDeps(costs=FREE_ROWS, ranks=ranks))


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
