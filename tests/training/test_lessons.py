"""Noise and trajectories as lessons; attention by blocks; end tokens of earlier turns."""

from itertools import pairwise

import pytest
import torch

from service.model import LoadOptions, load_checkpoint, parse_config
from tests.tiny import EXPERTS, tiny_checkpoint
from tests.training.test_session import GOLDEN
from training.attention import BlockAttention, DenseAttention, blockwise, fused, with_own_blocks, written_out
from training.chains import Rows, chain_loss
from training.conversations import Example
from training.layout import Layout
from training.lessons import Objective, Phase, Teacher, phases_up_to
from training.losses import Weights, exact_logits
from training.module import new_mrp
from training.noise import Noise, noisy_chains
from training.optim import Optimiser, Steps
from training.rollout import masked_positions, open_batch, roll_out
from training.stream import Shape, Stream
from training.trainer import Trainer

ENDS = torch.tensor([510, 511])


def setting():
    checkpoint = load_checkpoint(GOLDEN)
    torch.manual_seed(0)
    examples = [Example(torch.randint(0, 500, (21 + row,)).tolist(), 5 + row, 21 + row) for row in range(3)]
    batch = Stream(examples, Shape(3, checkpoint.config.block_size, 0, checkpoint.config.mask_token_id), 0).batch(0)
    return checkpoint, batch


def test_noise_reveals_true_tokens_up_to_the_most_allowed():
    checkpoint, batch = setting()
    opened = open_batch(checkpoint.backbone, batch)
    chains, where, importance = noisy_chains(checkpoint.backbone, opened, Noise(copies=6, reveals=3), 2, ENDS)
    counts = set()
    assert (importance == 1).all()
    assert len(chains) == 6
    assert [len(chain) for chain in chains] == [3] * 6
    assert where[0].shape == (3, 6 * batch.layout.noisy)
    for chain in chains:
        for before, after in pairwise(chain):
            changed = before.tokens != after.tokens
            assert (after.tokens == batch.truth)[changed].all()
            blocks = changed.unflatten(1, (-1, batch.layout.block)).sum(-1)
            left = ((before.tokens == batch.mask_id) & batch.answer).unflatten(1, (-1, batch.layout.block)).sum(-1)
            assert torch.equal(blocks > 0, left > 0)
            counts |= set(blocks.flatten().tolist())
    assert counts == {0, 1, 2, 3}


def test_published_noise_has_one_rate_an_example_and_weighs_its_positions_by_the_inverse():
    checkpoint, _ = setting()
    examples = [Example(torch.randint(0, 500, (200,)).tolist(), 3, 190)] * 6
    batch = Stream(examples, Shape(6, checkpoint.config.block_size, 0, checkpoint.config.mask_token_id), 0).batch(0)
    noise = Noise(copies=2, reveals=1, inverse_rate=True)
    chains, where, importance = noisy_chains(
        checkpoint.backbone, open_batch(checkpoint.backbone, batch), noise, 1, ENDS
    )
    rates = 1 / importance.unflatten(1, (2, -1))
    assert torch.equal(rates, rates[..., :1].expand_as(rates))  # of a copy of an example
    assert len(rates.unique()) == 12
    masked = torch.stack([chain[0].tokens == batch.mask_id for chain in chains], 1) & batch.answer[:, None]
    drawn = masked.sum(-1) / batch.answer.sum(-1)[:, None]
    assert (drawn - rates[..., 0]).abs().max() < 0.15
    compared = where[0].unflatten(1, (2, -1))
    blocks = (masked.sum(-1) - compared.sum(-1), masked.unflatten(2, (-1, batch.layout.block)).any(-1).sum(-1))
    assert torch.equal(*blocks)  # each block with masks has one that is revealed; no place after the end is compared


def test_the_inverse_rate_weighs_the_loss():
    """Of two rows, the one with the larger weights has the larger part of the loss."""
    checkpoint, batch = setting()
    torch.manual_seed(1)
    models = (checkpoint.backbone, new_mrp(parse_config(checkpoint.raw), checkpoint.backbone))
    opened = open_batch(checkpoint.backbone, batch)
    chains, where, ones = noisy_chains(checkpoint.backbone, opened, Noise(1, 1), 1, ENDS)
    rows = Rows(*models, opened, 1)

    def loss(importance: torch.Tensor | None) -> torch.Tensor:
        return chain_loss(rows, checkpoint.backbone, chains, where, Weights(), importance)

    with torch.no_grad():
        alone = [loss(ones * (torch.arange(3) == row)[:, None]) for row in range(3)]
        counts = where[0].sum(1)
        weights = torch.tensor([1.0, 5.0, 2.0])
        mixed = loss(ones * weights[:, None])
        expected = (
            sum(w * n * each for w, n, each in zip(weights, counts, alone, strict=True)) / (weights * counts).sum()
        )
        assert torch.isclose(mixed, expected)
        assert torch.isclose(loss(None), loss(ones))
        assert not torch.isclose(mixed, loss(ones))


def test_an_end_token_of_an_earlier_turn_ends_nothing():
    checkpoint, _ = setting()
    tokens = [7, 8, 510, 9, 1, 2, 510]  # the answer begins at 4, in the block of the end token before it
    batch = Stream([Example(tokens, 4, 7)], Shape(1, 8, 0, checkpoint.config.mask_token_id), 0).batch(0)
    masked = masked_positions(batch.masked(batch.answer), batch, ENDS)
    assert masked[0].tolist() == [False] * 4 + [True] * 4
    inside = batch.masked(torch.zeros_like(batch.answer))
    assert not masked_positions(inside, batch, ENDS).any()  # the tail stands behind the answer's own end
    assert len(roll_out(checkpoint.backbone, batch, ENDS).steps) >= 2


def test_both_kinds_of_lesson_teach_mrp():
    checkpoint, batch = setting()
    config = parse_config(checkpoint.raw)
    for share in (0.0, 1.0):
        torch.manual_seed(1)
        mrp = new_mrp(config, checkpoint.backbone)
        teacher = Teacher((checkpoint.backbone, mrp), Objective((), share, copies=2), ENDS)
        lesson = teacher.prepare(batch)
        chain, revision = lesson.losses(0, Phase(0.0, 2, Weights(4.0, 0.5, 0.5)))
        plain, none = lesson.losses(0, Phase(0.0, 2, Weights()))
        assert chain > 0
        assert revision > 0
        assert plain > 0
        assert none == 0
        (chain + revision).backward()
        assert all(parameter.grad is not None for parameter in mrp.parameters())


@pytest.mark.parametrize("dense", [[0], [1]])
def test_mrp_of_a_backbone_with_experts_begins_with_its_attention(dense):
    """And with its feed-forward where that is dense; MRP's are all dense."""
    checkpoint = tiny_checkpoint(1, **(EXPERTS | {"mlp_only_layers": dense}))
    [layer], last = new_mrp(checkpoint.config, checkpoint.backbone).layers, checkpoint.backbone.layers[-1]
    assert torch.equal(layer.self_attn.qkv_proj.weight, last.self_attn.qkv_proj.weight.float())
    assert bool(layer.mlp.down_proj.weight.any()) == (dense == [1])


def test_a_batch_is_used_for_as_many_updates_as_it_has_states():
    def updates(block, copies, trajectories=1.0, passes=1):
        return Teacher(None, Objective((), trajectories, copies, passes), 0).updates(block)

    assert [updates(16, 5), updates(4, 5), updates(8, 2), updates(2, 1)] == [3, 1, 3, 1]
    assert [updates(16, 5, passes=3), updates(8, 5, passes=3)] == [9, 3]
    assert updates(16, 5, trajectories=0.0, passes=3) == 1  # noise has no states that are worth keeping


def test_logits_of_losses_are_in_float32_with_weights_in_bfloat16():
    """Near 12, logits in bfloat16 have steps of 0.06."""
    backbone = load_checkpoint(GOLDEN, LoadOptions(torch.bfloat16)).backbone
    torch.manual_seed(5)
    hidden = torch.randn(64, backbone.head.shape[1])
    expected = hidden.double() @ backbone.head.double().T
    with torch.autocast("cpu", torch.bfloat16):
        logits = exact_logits(backbone, hidden)
    assert logits.dtype == torch.float32
    assert (logits.double() - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("prefix", [0, 6])
def test_attention_by_blocks_is_the_fused_and_the_written_out_one(prefix):
    torch.manual_seed(2)
    block, blocks, width = 3, 4, 8
    q, (k, v) = torch.randn(2, 4, blocks * block, width), torch.randn(2, 2, 2, prefix + blocks * block, width)
    reads = torch.rand(blocks * block, prefix) < 0.5
    mask = with_own_blocks(reads, block)
    assert torch.equal(mask, torch.cat([reads, torch.block_diag(*[torch.ones(block, block)] * blocks).bool()], 1))
    earlier, block_kv = (k[:, :, :prefix], v[:, :, :prefix]), (k[:, :, prefix:], v[:, :, prefix:])
    by_blocks = blockwise(q, earlier, block_kv, reads, block)
    assert torch.allclose(by_blocks, written_out(q, k, v, mask), atol=1e-5)
    assert torch.allclose(by_blocks, fused(q, k, v, mask), atol=1e-5)


def test_blocks_see_what_is_before_them_and_themselves():
    """A changed token reaches the blocks that may read it, and no others."""
    checkpoint, _ = setting()
    layout = Layout(length=12, first=4, block=4)
    torch.manual_seed(4)
    clean, copies = torch.randint(0, 90, (1, layout.clean)), torch.randint(0, 90, (1, 2 * layout.noisy))

    def look(clean: torch.Tensor, copies: torch.Tensor) -> torch.Tensor:
        before = DenseAttention(layout.clean_mask)
        checkpoint.backbone(clean, layout.clean_positions, before)
        attend = BlockAttention(layout.reads(2), layout.block, before.layers)
        return checkpoint.backbone(copies, layout.positions(2), attend).unflatten(1, (4, 4))

    def changed(tokens: torch.Tensor, index: int) -> torch.Tensor:
        return tokens.index_fill(1, torch.tensor([index]), 91)

    with torch.no_grad():
        same = look(clean, copies)
        reached = [
            (look(*tokens) != same).flatten(2).any(-1)[0].tolist()
            for tokens in ((changed(clean, 1), copies), (changed(clean, 6), copies), (clean, changed(copies, 5)))
        ]
    assert reached == [[True] * 4, [False, True, False, True], [False, True, False, False]]


def test_losses_are_in_bfloat16_where_it_is_wanted_and_fast(monkeypatch):
    checkpoint, batch = setting()

    def loss(*, wanted, fast):
        monkeypatch.setattr("training.trainer.fast_in_bfloat16", lambda _: fast)
        torch.manual_seed(0)
        mrp = new_mrp(checkpoint.config, checkpoint.backbone)
        teacher = Teacher((checkpoint.backbone, mrp), Objective(phases_up_to(1, Weights())), ENDS)
        reports = []
        trainer = Trainer(teacher, Optimiser(mrp.named_parameters(), 1e-3), bf16=wanted)
        trainer.run([[batch]], Steps(1), lambda report: reports.append(report) or None)
        return reports[0].chain

    exact = loss(wanted=False, fast=True)
    assert loss(wanted=True, fast=False) == exact
    assert loss(wanted=True, fast=True) == pytest.approx(exact, rel=0.05)
    assert loss(wanted=True, fast=True) != exact
