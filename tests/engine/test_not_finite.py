"""NaN and infinity in weights: the request ends with an error, and its neighbours' answers stay as they are."""

import math
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from service.decode.mode import DecodingMode, ScoreMode
from service.decode.modes import Direct, Dynamic, Entropy, Remask, Sequential, Speculative, Static
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.engine.request import LogprobsRequest
from service.engine_process.metrics import EngineMetrics
from service.errors import CheckpointError, OutputsNotFinite
from service.model import LoadOptions, load_checkpoint
from service.telemetry.metrics import Sums
from tests.engine.helpers import ALL_MODES, FREE_ROWS, SLOW_HOST, events_of
from tests.spoiled import spoil
from tests.thinned import fast_only
from tests.tiny import GOLDEN, GOLDEN_NAMES

NAME = GOLDEN_NAMES[0]
MODES: list[DecodingMode] = [
    *(Static(), Dynamic(0.9), Sequential(), Entropy(0.1), Direct(2), Direct(2, 0.3)),
    *(Remask(0.5), Speculative(2, 4), Speculative("auto")),
]  # fmt: skip
GREEDY, SAMPLED = SamplingParams(), SamplingParams(0.7, 0.9, 20, seed=3)
#: a token that no answer has, and a kind of weight of each layer
RARE, LAYERS = 77, ("embed_tokens", "o_proj", "down_proj", "input_layernorm", "lm_head")


def checkpoint_with(layer, value, dtype=torch.float32, network="backbone"):
    """A golden checkpoint whose first number of the last weight of a kind is `value`."""
    checkpoint = load_checkpoint(GOLDEN / NAME, LoadOptions(dtype, "cpu"))  # files with such a number are refused
    *_, weight = [weight for name, weight in getattr(checkpoint, network).named_parameters() if layer in name]
    weight.view(-1)[0] = value
    return checkpoint


def engine_of(checkpoint):
    return Engine(checkpoint, EngineConfig(kv_cache_tokens=4096), deps=EngineDeps(costs=FREE_ROWS))


def requests_of(modes, sampling=GREEDY):
    return [GenerationRequest(str(number), (0, 41, 42), mode, sampling, 16) for number, mode in enumerate(modes)]


def tokens_of(events):
    return {name: [event.token_ids for event in parts] for name, parts in events.items()}


def errors_of(events):
    return {name: type(parts[-1].error) for name, parts in events.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("layer", "value"), [("down_proj", math.inf), *((layer, math.nan) for layer in LAYERS)])
def test_weights_that_are_not_finite_end_requests_of_every_mode(layer, value, dtype):
    engine = engine_of(checkpoint_with(layer, value, dtype))
    for sampling in (GREEDY, SAMPLED):
        events = events_of(engine, requests_of(MODES, sampling=sampling))
        assert set(errors_of(events).values()) == {OutputsNotFinite}
        assert {parts[-1].finish_reason for parts in events.values()} == {"abort"}
        assert [event.token_ids for parts in events.values() for event in parts if event.token_ids] == []
    assert engine.state().kv_pages_used == 0


def test_weights_of_mrp_that_are_not_finite_end_requests_that_use_mrp():
    engine = engine_of(checkpoint_with("down_proj", math.nan, network="mrp"))
    events = events_of(engine, requests_of([Static(), Direct(2), Remask(0.5), Speculative(2), Speculative(0, 2)]))
    assert [errors_of(events)[str(number)] for number in (1, 2, 3)] == [OutputsNotFinite] * 3
    assert [events[name][-1].finish_reason for name in ("0", "4")] == ["length"] * 2


def test_scores_that_are_not_finite_are_an_error():
    request = GenerationRequest("0", (0, 41, -1, 43), ScoreMode(), GREEDY, 1, logprobs=LogprobsRequest(0, (42,)))
    assert errors_of(events_of(engine_of(checkpoint_with("o_proj", math.nan)), [request])) == {"0": OutputsNotFinite}


@pytest.mark.parametrize(
    "limits",
    fast_only(lambda limits: "attention" not in limits, [{}, {"async_scheduling": True}, {"attention": "triton"}]),
)
def test_neighbours_and_later_requests_are_untouched(limits, triton_device):
    damaged = load_checkpoint(GOLDEN / NAME, LoadOptions(torch.float32, "cpu"))
    assert_neighbours_are_untouched(damaged, EngineConfig(**limits))


def assert_neighbours_are_untouched(damaged, config):
    """The embedding of one token becomes NaN, which concerns the prompts with this token. Few pages are used anew."""
    sound, sums = load_checkpoint(GOLDEN / NAME, LoadOptions(torch.float32, "cpu")), Sums()
    neighbours = requests_of(MODES[:7])
    expected = tokens_of(events_of(engine_of(sound), neighbours))
    concerned = [
        replace(request, request_id=f"rare {request.request_id}", prompt_token_ids=(0, RARE, 42, 43, 44))
        for request in neighbours
    ]
    damaged.backbone.embed_tokens.weight[RARE] = math.nan
    engine = Engine(damaged, replace(config, kv_cache_tokens=28 * 14), EngineMetrics(sums), EngineDeps(costs=FREE_ROWS))
    for _ in range(2):
        events = events_of(engine, [request for pair in zip(concerned, neighbours, strict=True) for request in pair])
        assert {name: tokens for name, tokens in tokens_of(events).items() if name in expected} == expected
        assert {error for name, error in errors_of(events).items() if name not in expected} == {OutputsNotFinite}
    amounts, _ = sums.drain()
    assert amounts["corrupted_requests_total", ()] == 2 * len(concerned)


@pytest.mark.parametrize("limits", [{"deterministic": True}, {"async_scheduling": True}])
def test_later_requests_read_nothing_that_earlier_forwards_left(limits):
    config = EngineConfig(kv_cache_tokens=4096, prefix_cache=False, **limits)
    checkpoint = load_checkpoint(GOLDEN / NAME, LoadOptions(torch.float32, "cpu"))
    assert_nothing_is_left(Engine(checkpoint, config, deps=EngineDeps(costs=SLOW_HOST)))


def assert_nothing_is_left(engine):
    """Pages, and what graphs and chains keep, are spoiled before two requests of a mode, and before all modes."""
    uncertain = [Dynamic(0.02), Entropy(3), Sequential(1, 3), Direct(2, 0.02), Speculative("auto")]
    requests = requests_of([mode for mode in (*uncertain, *ALL_MODES) for _ in range(2)], SamplingParams(0.7, seed=3))
    host = load_checkpoint(GOLDEN / NAME, LoadOptions(torch.float32, "cpu"))
    expected = [done.token_ids for done in Engine(host, EngineConfig(kv_cache_tokens=4096)).generate(requests)]
    engine.generate(requests)
    for span in [*(slice(2 * number, 2 * number + 2) for number in range(len(uncertain))), slice(0, None)]:
        assert spoil(engine) > 1
        assert [done.token_ids for done in engine.generate(requests[span])] == expected[span]


@pytest.mark.parametrize(
    ("value", "dtype"), [(math.nan, torch.float32), (-math.inf, torch.bfloat16), (1e6, torch.float16)]
)
@pytest.mark.parametrize("layer", ["embed_tokens", "q_norm", "qkv_proj", "down_proj", "lm_head", "mrp"])
def test_a_checkpoint_with_such_a_number_is_not_loaded(tmp_path, layer, value, dtype):
    folder = shutil.copytree(GOLDEN / NAME, tmp_path / "copy")
    weights = {name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()}
    name = next(name for name in weights if layer.replace("qkv", "v") in name)
    weights[name].view(-1)[-1] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"has numbers that are not finite as torch\.") as refused:
        load_checkpoint(folder, LoadOptions(dtype, "cpu"))
    assert f"'{name}'" in refused.value.message
