"""Layout, trajectories and losses on tiny random models; one stage of the recipe; the saved checkpoint."""

from dataclasses import replace

import pytest
import torch

from service.decode.modes import Static
from service.engine import Engine, GenerationRequest
from service.model import Checkpoint, load_checkpoint, parse_config
from tests.tiny import FAST_DLLM, tiny_checkpoint
from training.batch import collate
from training.chains import Rows, chain_loss, chains_of
from training.demo import tokenizer as tok
from training.demo.backbone import complementary_masks, new_backbone
from training.demo.batches import Batches
from training.demo.checkpoint import export, shape
from training.layout import Layout
from training.losses import Weights, divergence, order_divergence
from training.module import new_mrp
from training.optim import Optimiser
from training.publish import mrp_config
from training.revision import revision_loss
from training.rollout import roll_out
from training.simulate import speculative_yield

NO_END = -1


@pytest.fixture(scope="module")
def raw(tokenizer):
    small = {"hidden_size": 32, "head_dim": 16, "intermediate_size": 64, "block_size": 16}
    return mrp_config(shape(tokenizer, 2) | small, {"num_nextn_predict_layers": 1})


@pytest.fixture(scope="module")
def backbone(raw):
    torch.manual_seed(0)
    return new_backbone(parse_config(raw)).requires_grad_(False)


@pytest.fixture(scope="module")
def mrp(raw, backbone):
    return new_mrp(parse_config(raw), backbone)


@pytest.fixture(scope="module")
def batch(tokenizer):
    return next(iter(Batches(tokenizer, 16, 4, seed=0)))


def test_a_copy_reads_earlier_clean_blocks_and_its_own_block_only():
    layout = Layout(length=6, first=2, block=2)
    assert layout.clean_positions[0].tolist() == [0, 1, 2, 3]
    assert layout.clean_mask.sum(1).tolist() == [2, 2, 4, 4]
    assert layout.positions(2)[0].tolist() == [2, 3, 4, 5, 2, 3, 4, 5]
    assert layout.reads(2).long().tolist() == 2 * [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]


def test_batches_hold_prompt_answer_end_and_tail(tokenizer, batch):
    end, user = tok.control(tokenizer, tok.END), tok.control(tokenizer, tok.USER)
    for tokens, answer, tail in zip(batch.truth, batch.answer, batch.tail, strict=True):
        assert tokens[0] == user
        assert tokens[answer][-1] == end
        assert not (answer & tail).any()
        assert batch.layout.noisy - int(answer.sum()) - int(tail.sum()) == len(tokens[~answer & ~tail])
    assert (batch.masked(batch.answer)[batch.answer | batch.tail] == batch.mask_id).all()


def test_the_two_copies_mask_every_answer_token_once(batch):
    where, rate = complementary_masks(batch)
    assert torch.equal(where.sum(0).bool(), batch.answer)
    assert not (where[0] & where[1]).any()
    assert torch.allclose(rate.sum(0), torch.ones_like(rate[0]))


def test_trajectories_are_the_engines_static_decodes(raw, backbone, batch):
    trajectory = roll_out(backbone, batch, NO_END)
    engine = Engine(Checkpoint(None, parse_config(raw), raw, backbone, None))
    block = batch.layout.block
    for row in range(2):
        for number in range(batch.layout.blocks):
            num_context = int((~batch.answer[row] & ~batch.tail[row]).sum()) if number == 0 else number * block
            request = GenerationRequest(
                "x",
                tuple(batch.truth[row, :num_context].tolist()),
                Static(),
                max_new_tokens=(number + 1) * block - num_context,
            )
            (completion,) = engine.generate([request])
            assert list(completion.token_ids) == final(trajectory)[row, num_context : (number + 1) * block].tolist()


@pytest.mark.parametrize("layout", [Layout(32, 8, 8, 4), Layout(24, 0, 8, 8)])
def test_trajectories_of_shifted_outputs_are_the_engines_static_decodes(layout):
    """The first token of a block is given. The others are revealed in the order of their sub-blocks."""
    torch.manual_seed(0)
    checkpoint = tiny_checkpoint(2, torch.float64, **FAST_DLLM | {"tie_word_embeddings": False})
    checkpoint.backbone.head.mul_(4)[checkpoint.config.mask_token_id] = (
        0  # never likely: the engine's confidences count it
    )
    checkpoint = replace(checkpoint, config=replace(checkpoint.config, sub_block_size=layout.sub_block))
    rows = [(torch.randint(0, 60, (layout.length,)).tolist(), layout.first + 3) for _ in range(3)]
    batch = collate(rows, layout, 0, checkpoint.config.mask_token_id)
    trajectory, engine = roll_out(checkpoint.backbone, batch, NO_END), Engine(checkpoint)
    assert not batch.answer.unflatten(1, (-1, 8))[..., 0].any()
    for (tokens, _), decoded in zip(rows, final(trajectory).tolist(), strict=True):
        for start in range(layout.first, layout.length, 8):
            num_given = 3 if start == layout.first else 1
            [done] = engine.generate(
                [GenerationRequest("x", tuple(tokens[: start + num_given]), Static(), max_new_tokens=8 - num_given)]
            )
            assert list(done.token_ids) == decoded[start - layout.first + num_given : start - layout.first + 8]


@torch.no_grad()
def test_mrp_of_shifted_outputs_is_compared_where_the_tokens_are_predicted():
    """A module that leaves the anchors as they are has the divergence of a stale prediction of each masked position."""
    checkpoint, layout = tiny_checkpoint(2, torch.float32, **FAST_DLLM), Layout(24, 8, 8, 4)
    backbone, rows = checkpoint.backbone, [(torch.randint(0, 60, (24,)).tolist(), 11) for _ in range(2)]
    trajectory = roll_out(backbone, collate(rows, layout, 0, checkpoint.config.mask_token_id), NO_END)
    mrp = checkpoint.mrp
    mrp.norm.weight.zero_()
    [chain], [where] = chains_of(trajectory, [0], [1], NO_END)
    loss = chain_loss(Rows(backbone, mrp, trajectory, 1), backbone, [chain], [where], Weights())
    row, position = where.nonzero().unbind(1)
    assert (position % 8 > 0).all()
    stale, teacher = (backbone.logits(step.hidden[row, position - 1]) for step in chain)
    torch.testing.assert_close(loss, divergence(teacher, stale).mean())


def final(trajectory):
    last = trajectory.steps[-1]
    chosen = last.tokens.scatter(1, last.position, last.token)
    still = torch.zeros_like(last.tokens, dtype=torch.bool).scatter(1, last.position, last.open)
    return torch.where(still, chosen, last.tokens)


def test_each_step_reveals_its_pick_and_nothing_behind_an_end(backbone, batch, tokenizer):
    end = tok.control(tokenizer, tok.END)
    trajectory = roll_out(backbone, batch, end, sampled_share=0.5)
    for before, after in zip(trajectory.steps, trajectory.steps[1:], strict=False):
        changed = (before.tokens != after.tokens).unflatten(1, (-1, batch.layout.block)).sum(-1)
        assert torch.equal(changed, before.open.long())
        assert (after.tokens.gather(1, before.position) == before.token)[before.open].all()


def test_divergences_are_zero_for_equals_and_order_minds_the_order():
    logits = torch.tensor([[5.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    where = torch.tensor([[True, True]])
    assert divergence(logits, logits).abs().max() < 1e-6
    assert order_divergence(logits, logits, where, 2).abs() < 1e-6
    assert order_divergence(logits, logits.flip(0), where, 2) > 1
    assert divergence(logits, logits.flip(0)).min() > 0.1


def test_mrp_learns_and_its_backbone_does_not(backbone, mrp, batch, tokenizer):
    torch.manual_seed(2)
    end, optimiser = tok.control(tokenizer, tok.END), Optimiser(mrp.named_parameters(), 0.02)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    trajectory = roll_out(backbone, batch, end)
    chains, where = chains_of(trajectory, [0, 2, 4, 6], [1, 2], end)
    losses = []
    for _ in range(15):
        losses.append(chain_loss(Rows(backbone, mrp, trajectory, 4), backbone, chains, where, Weights(4.0, 0.1)))
        losses[-1] = losses[-1] + revision_loss(Rows(backbone, mrp, trajectory, 1).refine, backbone, trajectory, end)
        optimiser.step(losses[-1], share=0.0)
    assert losses[-1] < losses[0]
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def test_a_perfect_drafter_yields_all_drafts_and_none_at_least_one(backbone, batch):
    stale = speculative_yield((backbone, None), batch, NO_END, 4)
    assert 1 <= stale.per_forward <= 5
    assert stale.tokens == int((batch.answer | batch.tail).sum())
    assert speculative_yield((backbone, None), batch, NO_END, 0).per_forward == 1


def test_export_keeps_every_weight_that_half_precision_can_hold(tmp_path, raw, backbone, mrp, tokenizer):
    halves = [model.half().float() for model in (backbone, mrp)]
    export(tmp_path, raw, (halves[0], halves[1]), tokenizer)
    loaded = load_checkpoint(tmp_path)
    for model, other in zip(halves, (loaded.backbone, loaded.mrp), strict=True):
        for name, value in model.state_dict().items():
            assert torch.equal(value, other.state_dict()[name])
