"""KV pages in 8 bits: the tokens of the plain reference that rounds in the same way, whatever becomes of the pages."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from service.decode.modes import Speculative, Static
from service.engine import Completion, Engine, EngineConfig, EngineDeps, GenerationRequest
from service.engine.drafting.costs import StepCosts
from service.errors import SettingsError
from service.model import Checkpoint
from tests.engine.helpers import ALL_MODES, CHEAP_ROWS, random_requests, request_of, shaped
from tests.engine.test_golden import WIDE_NAMES, expected, requests
from tests.engine.test_preemption import assert_same, with_fixed_drafts
from tests.engine.test_triton import short
from tests.reference import Reference
from tests.thinned import fast_only
from tests.tiny import ALL_NAMES, GOLDEN_NAMES, I_DLM_NAME, golden, tiny_checkpoint

INT8 = EngineConfig(kv_cache_tokens=4096, kv_cache_dtype="int8")


def engine_of(checkpoint: Checkpoint, **limits: Any) -> Engine:
    costs = CHEAP_ROWS if checkpoint.mrp else StepCosts(CHEAP_ROWS.backbone)
    return Engine(checkpoint, replace(INT8, **limits), deps=EngineDeps(costs=costs))


def tokens_of(completions: list[Completion]) -> list[tuple[int, ...]]:
    return [done.token_ids for done in completions]


# --- the reference's tokens ----------------------------------------------------------------------------


def shortest_of_each_mode(name: str, tokens: int = 24) -> list[GenerationRequest]:
    pairs = sorted(zip(expected(name), requests(name), strict=True), key=lambda pair: -len(pair[0]["prompt_token_ids"]))
    chosen = {entry["mode"]: request for entry, request in pairs}.values()
    return [replace(request, max_new_tokens=min(tokens, request.max_new_tokens)) for request in chosen]


@pytest.mark.parametrize(
    "name",
    fast_only({GOLDEN_NAMES[1], I_DLM_NAME}.__contains__, [name for name in ALL_NAMES if name not in WIDE_NAMES]),
)
def test_golden_checkpoints_decode_the_references_tokens_alone_and_in_one_batch(name: str) -> None:
    """Every published mode. The golden tokens themselves are those of whole numbers: most answers leave them."""
    checkpoint = golden(name, torch.float64)
    chosen, reference = shortest_of_each_mode(name), Reference(checkpoint, "int8")
    wanted = [reference.generate(request).token_ids for request in chosen]
    engine = engine_of(checkpoint)
    assert [engine.generate([request])[0].token_ids for request in chosen] == wanted
    assert tokens_of(engine_of(checkpoint).generate(chosen)) == wanted


def test_rounding_changes_tokens() -> None:
    """Else the tests here could not fail."""
    checkpoint = golden(GOLDEN_NAMES[0], torch.float64)
    whole, rounded = (
        tokens_of(engine_of(checkpoint, kv_cache_dtype=form).generate(requests(GOLDEN_NAMES[0])))
        for form in ("auto", "int8")
    )
    assert 0 < sum(first != second for first, second in zip(whole, rounded, strict=True)) < len(whole)


# --- drafts, hits, chunks and preemptions --------------------------------------------------------------


@pytest.mark.parametrize("name", [GOLDEN_NAMES[1], I_DLM_NAME])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_deterministic_speculative_is_static(name: str, dtype: torch.dtype) -> None:
    checkpoint = golden(name, dtype)
    modes = [Speculative(2), Speculative(0, 3)] if checkpoint.mrp else [Speculative(0, 2)]
    static = [replace(request, mode=Static()) for request in requests(name)[:9]]
    drafted = [replace(request, mode=modes[number % len(modes)]) for number, request in enumerate(static)]
    engine = engine_of(checkpoint, deterministic=True)
    wanted = tokens_of(engine.generate(static))
    done = engine.generate(drafted)
    assert tokens_of(done) == wanted
    assert sum(completion.stats.drafts_accepted for completion in done) > 0


@pytest.mark.undisturbed
@pytest.mark.parametrize("shape", [2, 5, 8, 10])
def test_a_prefix_hit_and_chunks_of_a_prompt_change_nothing(shape: int) -> None:
    checkpoint, rng = shaped(shape), random.Random(shape)
    size = checkpoint.config.block_size
    prompts = [tuple(rng.choices(range(60), k=5 * size + more)) for more in range(3)]
    modes = [Static()] if checkpoint.config.causal else ALL_MODES
    sent = [
        request_of(f"{number} {mode.name} {index}", prompt, mode, 3 * size)
        for number, prompt in enumerate(prompts)
        for index, mode in enumerate(modes)
        if checkpoint.mrp or not mode.needs_mrp
    ]
    whole = engine_of(checkpoint, prefix_cache=False, max_prefill_tokens=100 * size).generate(sent)
    chunks = engine_of(checkpoint, prefix_cache=False, max_prefill_tokens=size).generate(sent)
    engine = engine_of(checkpoint)
    engine.generate(sent)
    hits = engine.generate(sent)
    assert min(done.stats.cached_tokens for done in hits) >= 4 * size
    assert tokens_of(whole) == tokens_of(chunks) == tokens_of(hits)


@pytest.mark.parametrize("shape", [2, 8, 9])
def test_requests_go_on_as_if_they_had_kept_their_pages(monkeypatch: pytest.MonkeyPatch, shape: int) -> None:
    checkpoint, rng = shaped(shape), random.Random(shape)
    sent = [
        replace(request, mode=with_fixed_drafts(request.mode), report_steps=True)
        for request in random_requests(rng, checkpoint, 7, longest=40)
    ]
    assert_same(monkeypatch, checkpoint, sent, kv_cache_dtype="int8")


# --- Triton's kernels, sleep ---------------------------------------------------------------------------


@pytest.mark.slow
def test_kernels_decode_the_references_tokens(triton_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused kernels of layers and attention, by the interpreter, in two modes."""
    if triton_device == "cuda":
        pytest.skip("the reference is on the CPU")
    monkeypatch.setattr("service.model.triton_support.use_triton", lambda *_: True)
    monkeypatch.setattr("service.model.layers.by_kernel", lambda _: True)
    checkpoint = golden(GOLDEN_NAMES[0])
    chosen = [request for entry, request in short(tokens=4) if entry["mode"] in ("direct", "speculative")]
    with monkeypatch.context() as plain:
        plain.setattr("service.model.layers.by_kernel", lambda _: False)
        reference = Reference(checkpoint, "int8")
        wanted = [reference.generate(request).token_ids for request in chosen]
    assert tokens_of(engine_of(checkpoint, attention="triton", kv_cache_tokens=512).generate(chosen)) == wanted


@pytest.mark.undisturbed
def test_pages_in_8_bits_sleep_and_wake_up() -> None:
    checkpoint = tiny_checkpoint(1)
    engine = engine_of(checkpoint)
    sent = [request_of(f"{number}", range(number, number + 9), mode) for number, mode in enumerate(ALL_MODES)]
    before = tokens_of(engine.generate(sent))
    engine.sleep(1)
    engine.wake_up()
    assert tokens_of(engine.generate(sent)) == before


def test_an_unknown_form_is_refused_with_the_names() -> None:
    with pytest.raises(SettingsError, match="kv_cache_dtype is 'fp8', allowed are auto, int8"):
        engine_of(tiny_checkpoint(1), kv_cache_dtype="fp8")
