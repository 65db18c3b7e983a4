"""Random weights in published shapes, and the time of steps, on a tiny shape."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch

from benchmarks import machine, steps
from benchmarks.floor import ForwardNeed, Need, forward_need
from benchmarks.machine import Rates, measure_rates
from benchmarks.plain_loop import PlainLoop
from benchmarks.shapes import SHAPES, random_checkpoint, shape_named
from benchmarks.steps import Platform, host_milliseconds, step_times
from benchmarks.throughput import RandomWorkload
from service.decode.modes import Remask, Speculative
from service.engine import Engine
from service.engine.forward.runner import CheckpointRunner
from service.errors import InvalidRequest
from service.model import LoadOptions, parse_config
from tests.clock import Clock
from tests.tiny import tiny_config

SIZES = {"qwen3-0.6b": 0.75e9, "sdar-1.7b": 1.7e9, "sdar-4b": 4e9, "sdar-8b": 8e9, "sdar-30b-a3b": 30.5e9}
SIZES["llada2-mini"] = 16.3e9


@pytest.fixture(scope="module")
def tiny():
    return random_checkpoint(tiny_config(vocab_size=65, mask_token_id=64), LoadOptions(dtype=torch.bfloat16))


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_have_about_the_parameters_of_their_name(shape):
    config = parse_config(tiny_config() | asdict(shape_named(shape)))
    attention = config.hidden_size * config.head_dim * (2 * config.num_heads + 2 * config.num_kv_heads)
    experts = config.experts
    inner = experts.num_experts * experts.intermediate_size if experts else config.intermediate_size
    layer = attention + 3 * config.hidden_size * inner
    total = config.num_layers * layer + 2 * config.vocab_size * config.hidden_size
    assert total == pytest.approx(SIZES[shape], rel=0.22)


def test_an_unknown_shape_says_which_there_are():
    with pytest.raises(InvalidRequest, match=r"shape is 'gpt', allowed are qwen3-0\.6b, sdar-1\.7b, sdar-4b, sdar-8b"):
        shape_named("gpt")


def test_random_weights_decode_in_their_dtype_and_in_the_plain_loop(tiny):
    assert tiny.dtype == tiny.mrp.eh_proj.weight.dtype == torch.bfloat16
    engine = Engine(tiny)
    [request] = RandomWorkload(Speculative(2), (5, 5), 9).requests(engine, 1, 0)
    assert len(engine.generate([request])[0].token_ids) == 9
    assert len(PlainLoop(tiny).generate(request.prompt_token_ids, 9)) == 9


def test_step_times_are_medians_of_forwards_over_every_count_of_rows(tiny, monkeypatch):
    """By a clock that only forwards move: 10 ms a row of the backbone, 1 ms of MRP, the first one ever 500 ms more."""
    now = 0.0

    class Clocked(CheckpointRunner):
        def begin(self, network, rows):
            nonlocal now
            now += 0.010 * len(rows) + (0.0 if now else 0.5) if network == "backbone" else 0.001 * len(rows)
            return super().begin(network, rows)

    monkeypatch.setattr(steps, "CheckpointRunner", Clocked)
    monkeypatch.setattr(steps, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(steps, "host_milliseconds", lambda checkpoint, requests, rounds: 2.0 * requests)
    times = list(step_times(tiny, (1, 3), prefix_tokens=10, rounds=3, platform=Platform(Rates(1e9, 1e9))))
    assert [time.rows for time in times] == [1, 3]
    assert [time.backbone for time in times] == pytest.approx([10.0, 30.0])
    assert [time.mrp for time in times] == pytest.approx([1.0, 3.0])
    assert [time.step for time in times] == pytest.approx([12.0, 36.0])
    assert [time.context for time in times] == [8, 8]
    for one in times:
        need = forward_need(tiny.config, one.rows, 8, 2)
        assert one.floor == pytest.approx(sum(max(phase.moved, phase.flops) for phase in need) / 1e6)
        assert one.ratio == one.step / one.floor


def test_a_forward_moves_its_weights_once_and_every_rows_keys():
    """The 1.7B shape in bfloat16, by hand: 1.72 G parameters behind the embedding, 112 KiB of keys a token."""
    config = parse_config(tiny_config() | asdict(shape_named("sdar-1.7b")))
    one, many = forward_need(config, 1, 0, 2), forward_need(config, 64, 1024, 2)
    assert one.moved == pytest.approx(2 * 1.72e9, rel=0.01)
    assert one.flops == pytest.approx(4 * 2 * 1.72e9, rel=0.01)
    logits = 63 * 4 * 151936 * 2
    assert many.moved - one.moved - logits == pytest.approx(64 * 1028 * 112 * 1024, rel=0.01)
    assert many.flops > 64 * one.flops


def test_of_experts_those_are_moved_that_tokens_ask_for():
    """By hand: 48 layers with experts of 4.72 M parameters, 18.9 M of attention and a router of 0.26 M."""
    config = parse_config(tiny_config() | asdict(shape_named("sdar-30b-a3b")))
    one, many = forward_need(config, 1, 0, 2), forward_need(config, 512, 0, 2)
    head, rest = 2048 * 151936, 48 * (18.87e6 + 0.26e6)
    assert one.flops == pytest.approx(4 * 2 * (head + rest + 48 * 8 * 4.72e6), rel=0.01)
    asked = 128 * (1 - (1 - 8 / 128) ** 4)
    assert one.moved == pytest.approx(2 * (head + rest + 48 * asked * 4.72e6), rel=0.01)
    beside = 2 * (512 * 4 * 151936 + 2 * 48 * 512 * 512 * 4)
    assert many.moved - beside == pytest.approx(2 * (head + rest + 48 * 128 * 4.72e6), rel=0.01)


def test_phases_run_one_after_another_and_each_has_a_bound_of_its_own():
    rates = Rates(bytes_per_s=100.0, flops_per_s=1000.0)
    memory, arithmetic = Need(200, 1000), Need(200, 5000)
    assert (memory.seconds(rates), arithmetic.seconds(rates)) == (2.0, 5.0)
    mixed = ForwardNeed(products=arithmetic, attention=memory, head=memory)
    assert (mixed.seconds(rates), mixed.bound(rates)) == (9.0, "arithmetic")
    assert (mixed.moved, mixed.flops) == (600, 7000)
    assert ForwardNeed(arithmetic, Need(600, 0), memory).bound(rates) == "memory"


def test_the_floor_of_many_rows_adds_attention_to_products():
    """The 8B shape, 128 rows of 16: products are bound by arithmetic, attention by memory."""
    config = replace(parse_config(tiny_config() | asdict(shape_named("sdar-8b"))), block_size=16)
    need, rates = forward_need(config, 128, 1024, 2), Rates(4.8e12, 989e12)
    assert need.attention.seconds(rates) == need.attention.moved / 4.8e12
    assert need.products.seconds(rates) == need.products.flops / 989e12
    assert need.seconds(rates) > 1.05 * max(need.moved / 4.8e12, need.flops / 989e12)


def test_rates_are_measured_here(monkeypatch):
    monkeypatch.setattr(machine, "_BYTES", {"cpu": 2**22})
    monkeypatch.setattr(machine, "_SIDES", {"cpu": (64, 128)})
    rates = measure_rates(torch.device("cpu"), torch.bfloat16)
    assert 1e6 < rates.bytes_per_s < 1e13
    assert 1e6 < rates.flops_per_s < 1e15


@pytest.mark.parametrize("mode", [None, Speculative("auto"), Remask()])
def test_host_time_is_what_a_step_takes_outside_its_runner(tiny, mode, monkeypatch):
    """On a clock that stands still but for 20 ms of each forward and 3 ms of each step."""
    clock, begin, step = Clock(), CheckpointRunner.begin, Engine.step

    def slow(self, network, rows):
        clock.now += 0.02
        return begin(self, network, rows)

    def slow_step(self):
        clock.now += 0.003
        return step(self)

    monkeypatch.setattr(steps, "forward_clock", lambda _: clock)
    monkeypatch.setattr(CheckpointRunner, "begin", slow)
    monkeypatch.setattr(Engine, "step", slow_step)
    assert host_milliseconds(tiny, 3, 9, mode) == pytest.approx(3)


def test_matrices_in_8_bits_are_half_of_those_in_16():
    wide = parse_config(tiny_config(vocab_size=64))
    small = replace(wide, quantization="int8")
    need, less = forward_need(wide, 1, 0, 2), forward_need(small, 1, 0, 2)
    matrices = wide.num_layers * (
        wide.hidden_size * wide.head_dim * (2 * wide.num_heads + 2 * wide.num_kv_heads)
        + 3 * wide.hidden_size * wide.intermediate_size
    )
    assert need.moved - less.moved == matrices
    assert need.flops == less.flops
