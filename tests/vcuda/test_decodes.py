"""The engine's CUDA path on the virtual device: golden decodes, exactness, isolation, weight updates."""

import gc
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from service.decode.modes import Direct, Dynamic, Entropy, Speculative, Static
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.errors import DecodingFailed, OutputsNotFinite
from service.model import LoadOptions, load_checkpoint
from service.model.quantization.schemes import QUANT_SCHEMES
from service.model.weight_update import apply_update, drop_weights, load_update, restore_weights
from tests.engine.helpers import CHEAP_ROWS, FREE_ROWS, SLOW_HOST, events_of
from tests.engine.test_edit import assert_golden_edits
from tests.engine.test_golden import WIDE_NAMES
from tests.engine.test_not_finite import (
    MODES,
    assert_neighbours_are_untouched,
    assert_nothing_is_left,
    errors_of,
    requests_of,
    tokens_of,
)
from tests.other_weights import FIRST, other_weights
from tests.thinned import fast_only, fast_rows
from tests.tiny import (
    ALL_NAMES,
    DIFFCODER_NAME,
    EXPERTS_NAME,
    FAST_DLLM_NAME,
    GOLDEN,
    GOLDEN_NAMES,
    I_DLM_NAME,
    LLADA2_NAME,
    LLADA22_NAME,
)
from tests.vcuda import kernels
from tests.vcuda.decoding import ALL_ON, decode_golden, golden, on_device, waits


@pytest.mark.parametrize("name", ALL_NAMES)
def test_golden_decodes_with_graphs_and_steps_ahead(device, name):
    engine = Engine(on_device(name), ALL_ON)
    decode_golden(engine, name)
    if name in (*GOLDEN_NAMES, DIFFCODER_NAME, FAST_DLLM_NAME, I_DLM_NAME):
        assert waits(device.counts) == []
        assert device.counts.replays > device.counts.captures > 0
    else:  # torch has no grouped product of float32 on CUDA: the host waits for the experts' tokens
        assert {wait.split(":")[0] for wait in waits(device.counts)} == {"copy to the host at service/model/experts.py"}
        assert device.counts.replays == 0


def test_golden_edits_beside_other_modes(device):
    assert_golden_edits(Engine(on_device(LLADA2_NAME), ALL_ON), LLADA2_NAME)


def test_golden_insertions_beside_other_modes(device):
    assert_golden_edits(Engine(on_device(LLADA22_NAME), ALL_ON), LLADA22_NAME)


#: other limits of an engine, and the checkpoints that the fast tests decode within them
LIMITS: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    ({"deterministic": True}, (GOLDEN_NAMES[1],)),
    ({"async_scheduling": False}, (GOLDEN_NAMES[0],)),
    ({"attention": "eager"}, (GOLDEN_NAMES[1],)),
    ({"cuda_graphs": False, "max_rows": 18}, (GOLDEN_NAMES[0],)),
    ({"kv_cache_tokens": 256, "max_running": 5}, (GOLDEN_NAMES[2],)),
)


@pytest.mark.parametrize(
    ("name", "limits"),
    fast_rows(
        lambda name, limits: (limits, name) in [(row_limits, fast) for row_limits, names in LIMITS for fast in names],
        [
            (name, limits)
            for limits, _ in LIMITS
            for name in ALL_NAMES
            if name not in WIDE_NAMES or "max_rows" not in limits
        ],
    ),
)
def test_golden_decodes_within_other_limits(device, name, limits):
    decode_golden(Engine(on_device(name), replace(ALL_ON, **limits)), name, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_decodes_with_kernels_of_the_interpreter(device, name, monkeypatch):
    monkeypatch.setattr(kernels, "KERNELS", {})
    monkeypatch.setattr("tests.vcuda.torch_cuda.KERNELS", {})
    decode_golden(Engine(on_device(name), ALL_ON), name, 1)


@pytest.mark.parametrize("temperature", fast_only((0.7).__eq__, [0.0, 0.7, 1.2]))
def test_speculative_is_static_and_the_device_is_the_cpu(device, temperature):
    """Sampled and filtered requests, drafts of MRP and of the backbone, and drafts that the engine chooses."""
    modes = (Speculative(2), Speculative(0, 3), Speculative("auto"))
    static = [
        GenerationRequest(
            f"{seed}", (1, 40 + seed, 50, 2), Static(), SamplingParams(temperature, seed % 2 or 0.8, seed=seed), 16
        )
        for seed in range(9)
    ]
    drafted = [replace(request, mode=modes[index % 3]) for index, request in enumerate(static)]
    config = replace(ALL_ON, draft_candidates=8)
    engine = Engine(on_device(GOLDEN_NAMES[0]), config, deps=EngineDeps(costs=FREE_ROWS))
    host = load_checkpoint(GOLDEN / GOLDEN_NAMES[0], LoadOptions(torch.float32, "cpu"))
    expected = [done.token_ids for done in Engine(host, EngineConfig(kv_cache_tokens=4096)).generate(static)]
    assert [done.token_ids for done in engine.generate(static)] == expected
    assert [done.token_ids for done in engine.generate(drafted)] == expected
    assert waits(device.counts) == []


@pytest.mark.parametrize("deterministic", [False, True])
def test_drafts_of_a_causal_model_are_its_plain_decoding(device, deterministic):
    """Sampled and filtered requests, alone in their block and past its end, beside plain ones ahead of results."""
    prompts = [request.prompt_token_ids for request in golden(I_DLM_NAME, 2)[1]]
    static = [
        GenerationRequest(
            f"{seed}",
            prompts[seed % len(prompts)],
            Static(),
            SamplingParams(seed % 3 / 2, seed % 2 or 0.8, seed=seed),
            30,
        )
        for seed in range(9)
    ]
    drafted = [
        replace(
            request, request_id=f"drafted {request.request_id}", mode=(Speculative("auto"), Speculative(0, 2))[n % 2]
        )
        for n, request in enumerate(static)
    ]
    host = load_checkpoint(GOLDEN / I_DLM_NAME, LoadOptions(torch.float32, "cpu"))
    expected = [done.token_ids for done in Engine(host, EngineConfig(kv_cache_tokens=4096)).generate(static)]
    engine = Engine(on_device(I_DLM_NAME), replace(ALL_ON, deterministic=deterministic))
    done = engine.generate([*static, *drafted])
    assert [completion.token_ids for completion in done] == 2 * expected
    assert sum(completion.stats.drafts_accepted for completion in done) > 0
    assert waits(device.counts) == []


@pytest.mark.parametrize(
    ("name", "scheme"),
    fast_rows(
        lambda name, scheme: (
            (name, scheme)
            in [(GOLDEN_NAMES[0], "fp8"), (EXPERTS_NAME, "w8a8"), (FAST_DLLM_NAME, "w8a8"), (I_DLM_NAME, "w8a8")]
        ),
        [
            (name, scheme)
            for name in (GOLDEN_NAMES[0], EXPERTS_NAME, DIFFCODER_NAME, FAST_DLLM_NAME, I_DLM_NAME)
            for scheme in QUANT_SCHEMES
        ],
    ),
)
def test_8_bit_matrices_decode_as_on_the_cpu(device, name, scheme):
    """In graphs: with the kernels, experts in 8 bits make no host wait, in float32 either."""
    _, chosen = golden(name, 2)
    if (name, scheme) == (FAST_DLLM_NAME, "fp8"):
        del chosen[1:]  # in the second, a last bit moves an activation to the next of its 8 bits
    engine = Engine(on_device(name, quantization=scheme), ALL_ON)
    host = load_checkpoint(GOLDEN / name, LoadOptions(torch.float32, "cpu", quantization=scheme))
    expected = [done.token_ids for done in Engine(host, EngineConfig(kv_cache_tokens=4096)).generate(chosen)]
    assert [done.token_ids for done in engine.generate(chosen)] == expected
    assert waits(device.counts) == []
    assert device.counts.replays > 0
    assert device.counts.kernels["multiply"] > 0


@pytest.mark.parametrize("name", fast_only((GOLDEN_NAMES[0], I_DLM_NAME).__contains__, ALL_NAMES))
def test_pages_in_8_bits_decode_as_on_the_cpu(device, name):
    """In graphs and steps ahead, with the kernels that read and write whole numbers, and as many of them."""
    _, chosen = golden(name, 1)
    limits = replace(ALL_ON, kv_cache_dtype="int8")
    engine = Engine(on_device(name), limits)
    host = load_checkpoint(GOLDEN / name, LoadOptions(torch.float32, "cpu"))
    on_host = Engine(host, EngineConfig(kv_cache_tokens=4096, kv_cache_dtype="int8"))
    expected = [done.token_ids for done in on_host.generate(chosen)]
    assert [done.token_ids for done in engine.generate(chosen)] == expected
    assert device.counts.kernels["write_kv"] == 0


def test_an_error_of_one_request_ends_that_request_alone(device, monkeypatch):
    """The policies of `direct` raise between two forwards, while the next step is under way."""

    def fail(self, canvas):
        yield from ()
        raise RuntimeError("an unexpected error")

    monkeypatch.setattr(Direct, "decode", fail)
    entries, chosen = golden(GOLDEN_NAMES[0], 2)
    engine = Engine(on_device(GOLDEN_NAMES[0]), ALL_ON)
    for request in chosen:
        engine.submit(request)
    tokens: dict[str, tuple[int, ...]] = {request.request_id: () for request in chosen}
    errors = {}
    while engine.has_work:
        for event in engine.step():
            tokens[event.request_id] += event.token_ids
            errors[event.request_id] = event.error
    for entry, request in zip(entries, chosen, strict=True):
        if entry["mode"] == "direct":
            assert isinstance(errors[request.request_id], DecodingFailed)
        else:
            assert list(tokens[request.request_id]) == entry["token_ids"]
    assert engine.state().kv_pages_used == 0


def test_a_request_with_outputs_that_are_not_finite_ends_alone(device):
    assert_neighbours_are_untouched(on_device(GOLDEN_NAMES[0]), ALL_ON)


def test_later_requests_read_nothing_that_earlier_forwards_left(device):
    """Two requests of each mode, in steps ahead and chains, then all together."""
    limits = replace(ALL_ON, prefix_cache=False, draft_candidates=8)
    assert_nothing_is_left(Engine(on_device(GOLDEN_NAMES[0]), limits, deps=EngineDeps(costs=SLOW_HOST)))


def test_weights_that_are_finite_again_serve_every_request(device):
    checkpoint = on_device(GOLDEN_NAMES[0])
    engine = Engine(checkpoint, ALL_ON, deps=EngineDeps(costs=SLOW_HOST))
    [norm] = [weight for name, weight in checkpoint.backbone.named_parameters() if name == "norm.weight"]
    good, few = norm.clone(), [requests_of([mode] * 3) for mode in (Dynamic(0.02), Direct(2, 0.02), Entropy(3.0))]
    expected = [tokens_of(events_of(engine, requests)) for requests in few]
    for number in range(2):
        engine.update_weights(lambda: norm.copy_(good * torch.nan), 1 + 2 * number)
        assert set(errors_of(events_of(engine, requests_of(MODES))).values()) == {OutputsNotFinite}
        engine.update_weights(lambda: norm.copy_(good), 2 + 2 * number)
        assert [tokens_of(events_of(engine, requests)) for requests in few] == expected


def test_updated_weights_reach_captured_graphs(device, tmp_path):
    """Graphs read the weights at the addresses of their capture. New weights go to the same addresses."""
    folder = other_weights(tmp_path / "other")
    _, chosen = golden(GOLDEN_NAMES[0], 1)
    checkpoint = load_checkpoint(FIRST, LoadOptions(torch.float32, "cuda"))
    engine = Engine(checkpoint, replace(ALL_ON, max_rows=24), deps=EngineDeps(costs=CHEAP_ROWS))
    engine.prepare()
    before = [done.token_ids for done in engine.generate(chosen)]
    captures = device.counts.captures
    new = load_update([folder], checkpoint.config, LoadOptions())
    engine.update_weights(partial(apply_update, checkpoint, new), 1)
    after = [done.token_ids for done in engine.generate(chosen)]
    host = Engine(load_checkpoint(folder), EngineConfig(kv_cache_tokens=4096))
    assert after == [done.token_ids for done in host.generate(chosen)] != before
    assert device.counts.captures == captures


@pytest.mark.parametrize("name", [GOLDEN_NAMES[0], EXPERTS_NAME])
def test_sleep_gives_all_bytes_back(device, name):
    """All but weights and states at level 1, the weights at level 2. Graphs are captured anew at other addresses."""
    checkpoint, loaded = on_device(name), device.live_bytes
    engine = Engine(checkpoint, replace(ALL_ON, max_rows=24), deps=EngineDeps(costs=CHEAP_ROWS))
    loaded += engine._runner.model.states.tokens.nbytes
    engine.prepare()
    _, chosen = golden(name, 1)
    before = [done.token_ids for done in engine.generate(chosen)]
    captures, awake, home = device.counts.captures, device.live_bytes, checkpoint.device
    modules = [module for module in (checkpoint.backbone, checkpoint.mrp) if module is not None]
    weights = {id(tensor): tensor.nbytes for module in modules for tensor in module.state_dict(keep_vars=True).values()}
    engine.sleep(1)
    gc.collect()
    assert device.live_bytes == loaded
    engine.sleep(2)
    drop_weights(checkpoint)
    gc.collect()
    assert device.live_bytes == loaded - sum(weights.values())
    restore_weights(checkpoint, home)
    apply_update(checkpoint, load_update([GOLDEN / name], checkpoint.config, LoadOptions()))
    engine.wake_up()
    gc.collect()
    assert device.counts.captures == 2 * captures
    assert device.live_bytes <= awake
    assert [done.token_ids for done in engine.generate(chosen)] == before
    assert device.counts.captures == 2 * captures
