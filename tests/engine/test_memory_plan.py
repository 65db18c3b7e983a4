"""The sizes that fit into invented memories."""

from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.shapes import SHAPES, shape_named
from service.demo import CHECKPOINT
from service.engine.memory_plan import RequestedSizes, forward_bytes, plan_memory
from service.errors import SettingsError
from service.model import parse_config, read_config
from service.model.attention import PagedCache, page_bytes
from service.model.attention.interface import NUM_SPARE
from service.model.device import DeviceMemory
from tests.tiny import tiny_config

GIB = 2**30
DEMO = parse_config(read_config(CHECKPOINT))
#: the shapes and their weights in bfloat16, MRP's three layers included
WEIGHTS = {"qwen3-0.6b": 1.6, "sdar-1.7b": 4.1, "sdar-4b": 8.8, "sdar-8b": 16.4, "sdar-30b-a3b": 57.3}
WEIGHTS |= {"llada2-mini": 30.5, "stable-diffcoder-8b": 16.6, "fast-dllm-1.5b": 3.1, "fast-dllm-7b": 15.5}


def model(shape):
    return parse_config(tiny_config(num_nextn_predict_layers=3) | asdict(shape_named(shape)))


def gpu(total, weights):
    """A GPU whose memory has the weights and half a GiB of the driver."""
    return DeviceMemory("cuda", int((total - weights - 0.5) * GIB), total * GIB)


@pytest.mark.parametrize(
    ("shape", "total"), [(shape, total) for shape in SHAPES for total in (24, 80, 140) if WEIGHTS[shape] < 0.8 * total]
)
def test_on_a_gpu_the_share_is_used_and_not_more(shape, total):
    config, memory = model(shape), gpu(total, WEIGHTS[shape])
    plan = plan_memory(RequestedSizes(), config, 2, memory)
    used = memory.total - memory.free + plan.kv_bytes * (1 + 1 / config.num_kv_layers) + plan.forward_bytes
    assert 0.89 * memory.total < used <= 0.9 * memory.total
    assert plan.max_running == min(256, plan.kv_cache_tokens // 512)
    assert plan.max_rows >= 64


def test_requested_sizes_are_kept():
    memory = gpu(24, 4.1)
    plan = plan_memory(RequestedSizes(4096, 7, 12), model("sdar-1.7b"), 2, memory)
    assert (plan.kv_cache_tokens, plan.max_running, plan.max_rows) == (4096, 7, 12)
    tokens_only = plan_memory(RequestedSizes(kv_cache_tokens=4096), model("sdar-1.7b"), 2, memory)
    assert (tokens_only.kv_cache_tokens, tokens_only.max_running) == (4096, 8)


def test_where_nothing_is_left_the_error_says_what_there_is_and_what_to_do():
    with pytest.raises(SettingsError, match=r"kv_cache_tokens is auto, but of 24,576 MiB on cuda 7,424 MiB are free"):
        plan_memory(RequestedSizes(memory_utilization=0.7), model("sdar-8b"), 2, gpu(24, 16.25))


@given(
    shape=st.sampled_from(list(SHAPES)),
    kind=st.sampled_from(["cpu", "cuda"]),
    total=st.integers(1, 200 * GIB),
    share=st.floats(0, 1),
    utilization=st.floats(0.05, 1),
    limits=st.tuples(*[st.none() | st.integers(6, 5000)] * 2),
)
def test_every_plan_is_within_the_budget(shape, kind, total, share, utilization, limits):
    config, memory = model(shape), DeviceMemory(kind, int(total * share), total)
    sizes = RequestedSizes(None, *limits, memory_utilization=utilization)
    try:
        plan = plan_memory(sizes, config, 2, memory)
    except SettingsError:
        return
    budget = memory.free * utilization if kind == "cpu" else memory.free - total * (1 - utilization)
    assert plan.kv_bytes + plan.forward_bytes <= budget + 1
    assert plan.kv_cache_tokens >= 2 * config.block_size
    assert plan.max_rows >= config.block_size + 2
    more = plan_memory(sizes, config, 2, replace(memory, free=memory.free + GIB, total=total + GIB))
    assert more.kv_cache_tokens >= plan.kv_cache_tokens or more.max_rows > plan.max_rows


def test_the_sizes_of_pages_are_those_of_the_cache():
    cache = PagedCache(DEMO, 100, torch.device("cpu"), torch.float32)
    assert cache.keys.nbytes + cache.values.nbytes == (100 + NUM_SPARE) * page_bytes(DEMO, 4)
    assert forward_bytes(model("sdar-8b"), 10**6, 2) > forward_bytes(model("sdar-8b"), 10, 2)


@pytest.mark.parametrize(("shape", "more"), [("sdar-4b", 1.97), ("sdar-8b", 1.97), ("qwen3-0.6b", 1.97)])
def test_pages_in_8_bits_hold_almost_twice_the_tokens_in_the_same_memory(shape, more):
    config = model(shape)
    assert page_bytes(config, 2) / page_bytes(config, 2, "int8") == pytest.approx(more, abs=0.005)
    memory = gpu(24, WEIGHTS[shape])
    wide, narrow = (plan_memory(RequestedSizes(kv_cache_dtype=form), config, 2, memory) for form in ("auto", "int8"))
    assert 1.85 < narrow.kv_cache_tokens / wide.kv_cache_tokens <= more
    assert narrow.kv_bytes == (narrow.kv_cache_tokens // config.block_size + NUM_SPARE) * page_bytes(config, 2, "int8")


def test_the_cache_gets_what_the_measured_forwards_leave():
    config, memory = model("sdar-1.7b"), gpu(24, 4.1)
    estimated = plan_memory(RequestedSizes(), config, 2, memory)
    measured = plan_memory(RequestedSizes(), config, 2, memory, estimated.forward_bytes + GIB)
    assert measured.forward_bytes == estimated.forward_bytes + GIB
    less = estimated.kv_bytes - measured.kv_bytes
    assert less * (1 + 1 / config.num_kv_layers) == pytest.approx(GIB, rel=0.01)
    assert measured.max_rows == estimated.max_rows
