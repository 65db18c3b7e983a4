"""The same answers on a GPU: golden decodes in fp32, what `deterministic` promises in bf16, kernels by definition.

`python -m pytest -m gpu tests/engine/test_gpu.py`. It needs the packages of tests/test_few_packages.py, and hypothesis
for conftest.py. Where pytest has no plugins: `-c /dev/null --rootdir . --import-mode=importlib` leave their settings.
"""

import json
import random
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec import structs

from service.decode.block import MASKED, Block
from service.decode.modes import Direct, Dynamic, Remask, Speculative, Static
from service.decode.registry import make_mode
from service.demo import CHECKPOINT
from service.engine import Engine, EngineConfig, GenerationRequest, SamplingParams
from service.engine.forward.logits_sampler import TorchLogitsSampler, TritonLogitsSampler, rule_logits
from service.engine.forward.model_forward import ExecutionConfig
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner
from service.model import LoadOptions, load_checkpoint
from service.model.attention import attention_backend
from service.model.weight_update import apply_update, load_update
from tests.engine.forward.sampled import Position, batch_of, sample_by
from tests.model.attention_world import Kind, Shape, World
from tests.other_weights import FIRST, other_weights

pytestmark = pytest.mark.gpu
GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*-random-*"))
KNOBS = ("tokens_per_step", "threshold", "mrp_steps")


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("backend", [("eager", False), ("triton", False), ("triton", True)], ids=str)
@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
def test_golden_decodes_in_fp32_alone_and_mixed(folder, backend, ahead, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    attention, graphs = backend
    limits = EngineConfig(attention=attention, cuda_graphs=graphs, async_scheduling=ahead)
    engine = Engine(load_checkpoint(folder, LoadOptions(torch.float32, "cuda")), limits)
    cases = json.loads((folder / "expected.json").read_text())
    requests = [
        GenerationRequest(
            str(number), tuple(case["prompt_token_ids"]),
            make_mode(case["mode"], {knob: case[knob] for knob in KNOBS if knob in case}),
            max_new_tokens=case["max_new_tokens"], stop_token_ids=frozenset({510}),
        )
        for number, case in enumerate(cases)
    ]  # fmt: skip
    expected = [tuple(case["token_ids"]) for case in cases]
    assert [engine.generate([request])[0].token_ids for request in requests] == expected
    assert [completion.token_ids for completion in engine.generate(requests)] == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("folder", [*GOLDEN, CHECKPOINT], ids=lambda folder: folder.name)
def test_deterministic_is_equal_to_the_bit_alone_and_in_any_batch(folder, dtype):
    """Confidences are the softmax of the logits: one bit of difference anywhere shows in some of them."""
    checkpoint = load_checkpoint(folder, LoadOptions(dtype, "cuda"))
    engine, rng = Engine(checkpoint, EngineConfig(deterministic=True)), random.Random(folder.name)
    every = (Static(), Dynamic(0.4), Direct(2), Speculative(3), Remask(0.4), Speculative(0, 4))
    modes = [mode for mode in every if checkpoint.mrp or not mode.needs_mrp]
    requests = [
        GenerationRequest(
            f"{number}",
            tuple(rng.choices(range(400), k=rng.randint(1, 60))),
            modes[number % len(modes)],
            SamplingParams(rng.choice((0.0, 0.7, 1.2)), rng.choice((1.0, 0.8)), rng.choice((0, 20)), seed=number),
            rng.randint(8, 60),
        )
        for number in range(60)
    ]
    alone = [_picks(engine.generate([request])[0]) for request in requests]
    for _ in range(3):
        batch = rng.sample(requests, rng.randint(2, 60))
        for completion in engine.generate(batch):
            assert _picks(completion) == alone[int(completion.request_id)]


@pytest.mark.parametrize(("dtype", "deterministic"), [(torch.bfloat16, True), (torch.float32, False)], ids=str)
@pytest.mark.parametrize("folder", [*GOLDEN, CHECKPOINT], ids=lambda folder: folder.name)
def test_speculative_is_static(folder, dtype, deterministic, monkeypatch):
    """In bfloat16 `deterministic` promises it. Without it a verification of more rows may round otherwise."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    checkpoint = load_checkpoint(folder, LoadOptions(dtype, "cuda"))
    engine = Engine(checkpoint, EngineConfig(deterministic=deterministic))
    static = [
        GenerationRequest(
            f"{seed}", (1, 40 + seed, 50, 2), Static(), SamplingParams((0.0, 0.7, 1.2)[seed % 3], seed=seed), 64
        )
        for seed in range(64)
    ]
    counts = [1 + seed % 4 for seed in range(64)]
    params = [Speculative(count) if checkpoint.mrp else Speculative(0, count) for count in counts]
    drafted = [replace(request, mode=mode) for request, mode in zip(static, params, strict=True)]
    expected = [completion.token_ids for completion in engine.generate(static)]
    assert [completion.token_ids for completion in engine.generate(drafted)] == expected


def _picks(completion):
    steps = [step for block in completion.blocks for step in block.steps]
    return completion.token_ids, [pick for step in steps for pick in step.revealed]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("block", [(4, (16, 8), 128), (16, (32, 8), 128), (32, (4, 2), 64), (3, (6, 2), 12)], ids=str)
def test_attention_of_triton_is_attention_by_definition(block, dtype):
    """Long and short prefixes, prompts in chunks and states of a block, in one forward and in several."""
    for seed in range(3):
        rng = random.Random(seed)
        shapes = [Shape(rng.choice([0, 3, 40, 300]), rng.randint(0, 12), rng.randint(1, 20)) for _ in range(6)]
        world = World(Kind(*block, dtype, "cuda"), shapes, seed)
        attention, rows = attention_backend(world.cache, "triton"), world.all_rows
        while rows:
            count = rng.randint(1, len(rows))
            world.check(attention, rows[:count])
            del rows[:count]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1000, 151_936])
def test_the_sampling_kernel_agrees_with_torch(width, dtype):
    generator = torch.Generator("cuda").manual_seed(width)
    logits = (4 * torch.randn(96, width, generator=generator, device="cuda")).to(dtype)
    samplings = [SamplingParams((0.0, 0.7, 1.2)[n % 3], (1.0, 0.8)[n % 2], seed=n) for n in range(96)]
    positions = (Position(sampling, n, n % 4, n if n % 5 == 4 else None) for n, sampling in enumerate(samplings))
    reads = batch_of(*positions)
    sampled, weights = sample_by(TritonLogitsSampler(width - 1), logits, reads)
    wanted, _ = sample_by(TorchLogitsSampler(width - 1), logits.clone(), reads)
    same = sampled[:, 0] == wanted[:, 0]
    assert same.sum() >= 94  # logarithms round differently, which may tip a sampled tie
    torch.testing.assert_close(sampled[same, 1], wanted[same, 1], rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(sampled[:, 2], wanted[:, 2], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(weights, rule_logits(logits.float(), reads).logsumexp(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "execution",
    [ExecutionConfig("eager"), ExecutionConfig("triton", cuda_graphs=False), ExecutionConfig("triton")],
    ids=str,
)
def test_a_pass_begins_without_waiting_for_the_device(execution):
    checkpoint = load_checkpoint(CHECKPOINT, LoadOptions(torch.bfloat16, "cuda"))
    size = checkpoint.config.block_size
    runner = ModelRunner(checkpoint, 64, None, 8, execution)
    state = Block((MASKED,) * size)
    pages = [3, 4, 5]
    rows = [
        Row(Block((7,) * size), 0, [0, 1, 2], writes_kv=True),
        Row(state, 0, pages, writes_kv=False, sampling=SamplingParams(), drafts=True, entropy=True),
        Row(state, 0, pages, writes_kv=False, sampling=SamplingParams(0.7, 0.9, seed=1), drafts=True),
    ]
    readings = runner.begin("backbone", rows)()
    anchored = [structs.replace(row, anchor=reading.handle) for row, reading in zip(rows, readings, strict=True)]
    for _ in range(2):
        runner.begin("backbone", rows)()
        runner.begin("mrp", anchored)()
    for network, members in (("backbone", rows), ("mrp", anchored)):
        torch.cuda.synchronize()
        with warnings.catch_warnings(record=True) as waited:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                pending = runner.begin(network, members)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        assert not any("called a synchronizing" in str(warning.message) for warning in waited)
        assert len(pending()) == len(members)


@pytest.mark.parametrize("backend", [("eager", False), ("triton", True)], ids=str)
@pytest.mark.parametrize("quantization", [None, "w8a8"])
def test_updated_weights_decode_as_a_fresh_load(backend, quantization, monkeypatch, tmp_path):
    """Graphs that were captured with the old numbers read the new ones."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    attention, graphs = backend
    limits = EngineConfig(attention=attention, cuda_graphs=graphs, deterministic=True)
    options, other = LoadOptions(torch.float32, "cuda", quantization=quantization), other_weights(tmp_path / "other")
    requests = [GenerationRequest(str(seed), (1, 40 + seed, 2), Speculative(2), max_new_tokens=48) for seed in range(8)]
    served = load_checkpoint(FIRST, options)
    engine = Engine(served, limits)
    old = [completion.token_ids for completion in engine.generate(requests)]
    fresh = load_update([other], served.config, options)
    engine.update_weights(lambda: apply_update(served, fresh), 1)
    wanted = [completion.token_ids for completion in Engine(load_checkpoint(other, options), limits).generate(requests)]
    assert [completion.token_ids for completion in engine.generate(requests)] == wanted != old
