"""The demo's recipe: growing changes nothing, a training goes on to the bit, static decodes are judged."""

import random

import pytest
import torch
from tokenizers import Tokenizer

from service.decode.modes import Static
from service.demo import CHECKPOINT, check, heldout_problems
from service.engine import Engine, GenerationRequest
from service.model import load_checkpoint, parse_config
from service.text import TextCodec
from training.attention import DenseAttention
from training.demo import backbone as training
from training.demo.backbone import new_backbone
from training.demo.batches import Batches
from training.demo.checkpoint import shape
from training.demo.disguise import Disguise
from training.demo.growth import deeper
from training.demo.judge import accuracy, static_answers
from training.demo.tasks import draw
from training.demo.tokenizer import encode_prompt, encode_text
from training.layout import Layout
from training.state import RunFolder

BLOCK = 8
SMALL = {
    "block_size": BLOCK, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8,
}  # fmt: skip


def config(tokenizer, layers):
    return parse_config({**shape(tokenizer, layers), **SMALL})


def test_a_deeper_backbone_computes_the_same(tokenizer):
    torch.manual_seed(0)
    backbone = new_backbone(config(tokenizer, 2))
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    layout, tokens = Layout(32, 16, BLOCK), torch.randint(0, 400, (3, 24))

    def hidden():
        return backbone(tokens, layout.clean_positions, DenseAttention(layout.clean_mask))

    before = hidden()
    backbone = deeper(backbone, config(tokenizer, 6))
    assert len(backbone.layers) == 6
    assert torch.equal(hidden(), before)
    with pytest.raises(ValueError, match="8 layers are not a multiple of 6"):
        deeper(backbone, config(tokenizer, 8))


@pytest.fixture
def batches(tokenizer, monkeypatch):
    monkeypatch.setattr("training.demo.batches._DRAWN_AT_ONCE", 256)
    return Batches(tokenizer, BLOCK, 4, seed=1, draw=draw)


class Stopped(Exception):
    pass


def test_a_stopped_training_goes_on_to_the_bit(tokenizer, batches, tmp_path, monkeypatch):
    part = training.Part(5, 6, falling=True)
    quiet = training.Watcher(lambda _, __: None, lambda _: "")

    def trained(folder):
        torch.manual_seed(3)
        backbone = new_backbone(config(tokenizer, 2))
        training.train(backbone, batches, part, RunFolder(folder, {}), quiet)
        return backbone.state_dict()

    whole = trained(tmp_path / "whole")
    update = training.update

    def stopping(backbone, optimiser, batch, part):
        if optimiser.steps == 4:
            raise Stopped
        return update(backbone, optimiser, batch, part)

    monkeypatch.setattr(training, "_SAVE_SECONDS", 0)
    monkeypatch.setattr(training, "update", stopping)
    with pytest.raises(Stopped):
        trained(tmp_path / "parts")
    monkeypatch.setattr(training, "update", update)
    resumed = trained(tmp_path / "parts")
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())


def test_the_judge_decodes_as_the_engine_does():
    checkpoint, codec = load_checkpoint(CHECKPOINT), TextCodec.load(CHECKPOINT)
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    prompts = [problem.prompt for problem in heldout_problems(2, seed=2)]
    stop = frozenset(checkpoint.config.eos_token_ids)
    requests = [
        GenerationRequest(
            prompt, tuple(encode_prompt(tokenizer, prompt)), Static(), max_new_tokens=96, stop_token_ids=stop
        )
        for prompt in prompts
    ]
    decoded = {
        completion.request_id: codec.decode(completion.token_ids)
        for completion in Engine(checkpoint).generate(requests)
    }
    block = checkpoint.config.block_size
    for prompt in prompts:
        assert static_answers(checkpoint.backbone, tokenizer, [prompt], block) == [decoded[prompt]]
    right = sum(check(prompt, decoded[prompt]) for prompt in prompts)
    assert accuracy(checkpoint.backbone, tokenizer, prompts, block, check) == right / len(prompts)


def test_a_disguise_keeps_what_is_equal_equal(tokenizer):
    text = "Tom has 5 pens. So Tom has x pens, x."
    tokens = encode_text(tokenizer, text)
    assert Disguise.of(tokenizer, 0.0)(random.Random(0), tokens) == tokens
    changed = Disguise.of(tokenizer, 1.0)(random.Random(0), tokens)
    assert sum(a == b for a, b in zip(tokens, changed, strict=True)) == len(tokens) - 6
    names = [changed[index] for index, token in enumerate(tokens) if "Tom" in tokenizer.id_to_token(token)]
    assert len(names) == 2
    assert names[0] == names[1]
