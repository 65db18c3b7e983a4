"""The start of an engine on CUDA: warm-up, captures, prices, the size of the KV cache. Then nothing compiles."""

import gc
import logging
from dataclasses import replace
from itertools import count

import pytest
import torch

from service.decode.modes import Direct, Remask, Speculative, Static
from service.engine import Engine, EngineDeps, GenerationRequest, SamplingParams
from service.engine.forward import graphs
from service.engine.forward.runner import ModelRunner
from service.engine.request import LogprobsRequest
from service.engine.thread import EngineThread
from service.engine_process.core import load_core
from service.engine_process.fitted_engine import fitted_engine
from service.model.device import free_bytes
from service.settings.settings import Settings
from tests.engine.helpers import CHEAP_ROWS, Recorder
from tests.thinned import fast_only, fast_rows
from tests.tiny import GOLDEN, GOLDEN_NAMES
from tests.vcuda.decoding import ALL_ON, decode_golden, golden, on_device, steps, waits

NAME = GOLDEN_NAMES[1]


def mixed_requests(count):
    """Requests of all kinds of rows: sampled, filtered, rescored, drafted, long prompts, log-probabilities."""
    modes = (Static(), Speculative(2, 3), Direct(2), Remask(0.5), Speculative("auto"), Speculative(0, 4))
    sampled = SamplingParams(0.7, seed=1), SamplingParams(0.7, seed=1, min_p=0.1), SamplingParams(1.0, 0.8, 9, seed=2)
    return [
        GenerationRequest(
            str(number),
            tuple((5 * number + position) % 400 for position in range(3 + 60 * (number % 3))),
            modes[number % len(modes)],
            (SamplingParams(), *sampled)[number % 4],
            16,
            logprobs=LogprobsRequest(2, (5,)) if number % len(modes) == 0 else None,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(
    "limits",
    fast_only(lambda limits: "deterministic" not in limits, [{}, {"deterministic": True}, {"cuda_graphs": False}]),
)
def test_nothing_compiles_or_is_captured_in_a_request(device, limits):
    config = replace(ALL_ON, draft_candidates=8, max_rows=40, **limits)
    engine = Engine(on_device(NAME), config, deps=EngineDeps(costs=CHEAP_ROWS))
    engine.prepare()
    assert (device.counts.captures > 0) is config.cuda_graphs
    assert device.counts.compilations > 0
    for number in (1, 9):
        for counts in steps(engine, device, mixed_requests(number)):
            assert (counts.captures, counts.compilations, waits(counts)) == (0, 0, [])
    decode_golden(engine, NAME, 2)


def test_graphs_are_captured_largest_first_on_one_stream(device, caplog):
    caplog.set_level(logging.INFO)
    engine = Engine(on_device(NAME), replace(ALL_ON, max_rows=40), deps=EngineDeps(costs=CHEAP_ROWS))
    engine.prepare()
    sizes = [next(op.outputs[0].shape[0] for op in graph.operations if op.outputs) for graph in device.graphs]
    assert sizes == sorted(sizes, reverse=True)
    assert {1, 2, 4, 8, 40} <= set(sizes)
    assert len(device.streams) == 1
    assert f"captured {len(device.graphs)} CUDA graphs" in caplog.text
    captured = len(device.graphs)
    engine.prepare()
    assert len(device.graphs) == captured


# --- failed captures -----------------------------------------------------------------------------------


def fail_captures(patch, failures):
    """The captures of these numbers fail after the first run, by these errors."""
    capture, numbers = graphs.CudaCapture.__call__, count()

    def failing(self, function):
        error, runs = failures.get(next(numbers)), count()

        def run():
            if next(runs) == 1 and error is not None:
                raise error
            return function()

        return capture(self, run)

    patch.setattr(graphs.CudaCapture, "__call__", failing)


@pytest.mark.parametrize(
    ("text", "old"),
    fast_rows(
        lambda text, old: old is (text == "invalid argument"),
        [(text, old) for text in ("invalid argument", "out of memory") for old in (True, False)],
    ),
)
def test_a_failed_capture_ends_neither_other_graphs_nor_the_allocator(device, monkeypatch, text, old):
    """`old`: as torch 2.11 does. Torch 2.13 closes the pool of a failed capture."""
    device.leaves_pools_open, error = old, RuntimeError(f"CUDA error: {text}")
    fail_captures(monkeypatch, {0: error, 3: error})
    recorder = Recorder()
    engine = Engine(on_device(NAME), replace(ALL_ON, max_rows=40), recorder, EngineDeps(costs=CHEAP_ROWS))
    stream = device.stream
    engine.prepare()
    assert device.counts.captures > len(device.graphs) > 10
    torch.cuda.empty_cache()
    assert device.stream is stream
    decode_golden(engine, NAME, 2)
    assert device.counts.replays > 0
    request = replace(golden(NAME, 1)[1][0], request_id="alone")
    before = sum(report.eager_forwards for report in recorder.reports)
    engine.generate([request])
    assert sum(report.eager_forwards for report in recorder.reports) == before  # small graphs are there


def test_a_capture_without_memory_is_tried_again(device, monkeypatch):
    """Without a warm-up: the forward runs in halves, and the shape is captured when it comes again."""
    fail_captures(monkeypatch, {0: RuntimeError("CUDA error: out of memory")})
    engine = Engine(on_device(NAME), ALL_ON)
    decode_golden(engine, NAME, 2)
    assert device.counts.replays > 0


# --- memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [0, 24 * 2**20], ids=["alone", "beside another process"])
def test_the_cache_gets_the_memory_that_graphs_and_the_largest_forward_leave(device, other):
    """Two processes may share a card: the second one takes what the first has left."""
    device.total_bytes, device.other_bytes = 48 * 2**20 + other, other
    settings = Settings(
        model=str(GOLDEN / NAME), device="cuda", dtype="float32", max_rows=16, gpu_memory_utilization=0.9
    )
    core = load_core(settings, Recorder(), EngineDeps(costs=CHEAP_ROWS))
    device.peak_bytes = device.live_bytes
    engine = core.engine
    for request in mixed_requests(12):
        engine.submit(request)
    while engine.has_work:
        assert [event.error for event in engine.step() if event.error] == []
    used = device.peak_bytes + other
    assert 0.7 * device.total_bytes <= used <= 0.9 * device.total_bytes
    assert len(device.graphs) < device.counts.captures < 2 * len(device.graphs)  # each once, after a sample of them
    core.close()


def test_a_sample_of_graphs_tells_the_memory_of_all(device):
    config = replace(ALL_ON, max_rows=40)
    measured = Engine(on_device(NAME), config, deps=EngineDeps(costs=CHEAP_ROWS)).measure_bytes()
    gc.collect()
    engine, captures = Engine(on_device(NAME), config, deps=EngineDeps(costs=CHEAP_ROWS)), device.counts.captures
    free = free_bytes(torch.device("cuda"))
    engine.warm_up()
    assert measured.graphs == pytest.approx(free - free_bytes(torch.device("cuda")), rel=0.01)
    assert captures < 0.7 * len(device.graphs)
    engine.prepare()
    assert device.counts.captures == captures + len(device.graphs)


@pytest.mark.parametrize("factor", fast_only(lambda factor: factor < 1, [0.3, 3]))
def test_where_the_sample_was_wrong_graphs_are_captured_again(device, monkeypatch, caplog, factor):
    measure = ModelRunner.measure_bytes

    def wrong(self, max_rows):
        measured = measure(self, max_rows)
        return replace(measured, graphs=int(factor * measured.graphs))

    monkeypatch.setattr(ModelRunner, "measure_bytes", wrong)
    device.total_bytes = 48 * 2**20
    settings = Settings(model=str(GOLDEN / NAME), device="cuda", dtype="float32", max_rows=16)
    core = load_core(settings, Recorder(), EngineDeps(costs=CHEAP_ROWS))
    assert "they are captured again" in caplog.text
    assert device.counts.captures > 2 * len(device.graphs)
    assert 0.7 * device.total_bytes <= device.live_bytes <= 0.9 * device.total_bytes
    decode_golden(core.engine, NAME, 1)
    core.close()


def test_fewer_rows_where_the_largest_forward_does_not_fit(device):
    checkpoint = on_device(NAME)
    device.total_bytes = device.live_bytes + 24 * 2**20
    settings = Settings(model=str(GOLDEN / NAME), device="cuda", dtype="float32", gpu_memory_utilization=1.0)
    engine = fitted_engine(settings, checkpoint, Recorder(), EngineDeps())
    assert engine._max_rows < 256
    decode_golden(engine, NAME, 1)


# --- devices -------------------------------------------------------------------------------------------


def test_a_device_with_an_index_is_the_current_one_of_every_thread(device, monkeypatch):
    """Triton starts kernels on the current device of the calling thread."""
    engine = Engine(on_device(NAME), ALL_ON)
    assert device.used == [torch.device("cuda:0")]
    monkeypatch.setattr(engine._runner, "device", torch.device("cuda:1"))
    thread = EngineThread(engine, lambda _: None)
    thread.start()
    thread.stop()
    assert device.used[1:] == [torch.device("cuda:1")]
