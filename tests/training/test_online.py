"""MRP learns from finished requests: what is kept, what is judged, what is written."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

from service.decode.modes import Speculative, Static
from service.engine import Engine, GenerationRequest
from service.errors import SettingsError
from service.model import LoadOptions, load_checkpoint
from service.model.weight_update import apply_update, check_update, load_update
from tests.tiny import DIFFCODER_NAME, EXPERTS_NAME, FAST_DLLM_NAME, GOLDEN, GOLDEN_NAMES, I_DLM_NAME
from training import online
from training.online import Judgement, OnlineOptions, OnlineTrainer, Sample, _compare
from training.publish import WEIGHTS_FILE
from training.simulate import Drafting, Yield

FEW = OnlineOptions(rows=4, held_out=2, judged=24, rate=3e-3)


def samples_of(checkpoint, count, owner=""):
    """Finished requests: random prompts with the answers of `static`."""
    rng = torch.Generator().manual_seed(0)
    prompts = [tuple(torch.randint(10, 60, (4 + n % 7,), generator=rng).tolist()) for n in range(count)]
    requests = [GenerationRequest(str(n), prompt, Static(), max_new_tokens=16) for n, prompt in enumerate(prompts)]
    return [
        Sample((*prompt, *done.token_ids), len(prompt), owner)
        for prompt, done in zip(prompts, Engine(checkpoint).generate(requests), strict=True)
    ]


def drawn_by(trainer, monkeypatch, updates=4):
    """The sequences that updates and a judgement read."""
    read = ([], [])
    draw, newest = trainer._samples.draw, trainer._samples.newest
    monkeypatch.setattr(trainer._samples, "draw", lambda *a: read[0].append(draw(*a)) or read[0][-1])
    monkeypatch.setattr(trainer._samples, "newest", lambda *a: read[1].append(newest(*a)) or read[1][-1])
    for _ in range(updates):
        trainer.update()
    trainer.judge()
    return tuple({tuple(example.sequence) for examples in side for example in examples} for side in read)


@pytest.fixture(scope="module")
def samples():
    return samples_of(load_checkpoint(GOLDEN / GOLDEN_NAMES[0]), 64)


@pytest.fixture
def checkpoint():
    return load_checkpoint(GOLDEN / GOLDEN_NAMES[0])


@pytest.fixture
def trainer(checkpoint, samples):
    trainer = OnlineTrainer(checkpoint, FEW)
    trainer.add(samples)
    return trainer


def weights_of(network):
    return {name: weight.clone() for name, weight in network.state_dict().items()}


def same(first, second):
    return all(torch.equal(weight, second[name]) for name, weight in first.items())


def test_drafts_are_counted_nearly_as_the_engine_counts_them(checkpoint, samples, monkeypatch):
    """Of a chain of two drafts. After a block's first round it begins with the stale logits, unlike `auto`."""
    monkeypatch.setattr(online, "Drafting", partial(Drafting, stale_first=True))
    trainer = OnlineTrainer(checkpoint, replace(FEW, held_out=1, judged=64))
    trainer.add(samples)
    requests = [
        GenerationRequest(str(n), sample.tokens[: sample.prompt], Speculative(2), max_new_tokens=16)
        for n, sample in enumerate(samples)
    ]
    stats = [done.stats for done in Engine(checkpoint).generate(requests)]
    forwards = sum(each.forwards.denoise + each.forwards.verify for each in stats)
    judgement = trainer.judge()
    assert judgement.samples == 64
    assert judgement.served == pytest.approx(sum(each.drafts_accepted for each in stats) / forwards, rel=0.05)
    assert judgement.candidate == judgement.served


def test_training_betters_the_candidate_and_changes_nothing_that_is_served(checkpoint, trainer):
    before = weights_of(checkpoint.backbone), weights_of(checkpoint.mrp)
    losses = [trainer.update().chain for _ in range(30)]
    assert sum(losses[-5:]) < sum(losses[:5])
    judgement = trainer.judge()
    assert judgement.candidate > judgement.served
    assert same(before[0], checkpoint.backbone.state_dict())
    assert same(before[1], checkpoint.mrp.state_dict())


def test_the_judged_weights_are_written_and_update_a_service(checkpoint, trainer, tmp_path):
    trainer.update()
    judgement = trainer.judge()
    trainer.update()  # after the judgement: not written
    trainer.write(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [WEIGHTS_FILE]
    assert all(name.startswith("mrp_modules.") for name in load_file(tmp_path / WEIGHTS_FILE))
    source, options = str(checkpoint.path), LoadOptions()
    checked = check_update([source, str(tmp_path)], checkpoint.config, options, partial=True)
    before = weights_of(checkpoint.mrp)
    apply_update(checkpoint, load_update(checked.folders, checkpoint.config, options))
    assert not same(before, checkpoint.mrp.state_dict())
    assert trainer.judge().served == judgement.candidate


def test_an_adopted_candidate_is_the_served_module_and_the_training_goes_on(checkpoint, trainer):
    trainer.update()
    judgement = trainer.judge()
    trainer.adopt()
    assert trainer.judge().served == judgement.candidate
    assert trainer.update().step == 6


def test_weights_are_written_in_the_type_of_the_checkpoints_files(tmp_path, checkpoint, samples):
    half = tmp_path / "half"
    half.mkdir()
    for file in checkpoint.path.glob("*.json"):
        (half / file.name).write_bytes(file.read_bytes())
    weights = load_file(checkpoint.path / "model.safetensors")
    save_file({name: weight.half() for name, weight in weights.items()}, half / "model.safetensors")
    trainer = OnlineTrainer(load_checkpoint(half), FEW)
    trainer.add(samples)
    trainer.update()
    judged = trainer.judge()
    trainer.write(tmp_path / "new")
    assert {weight.dtype for weight in load_file(tmp_path / "new" / WEIGHTS_FILE).values()} == {torch.float16}
    trainer.adopt()
    assert trainer.judge().served == judged.candidate


def test_held_out_requests_are_judged_and_never_trained_on(trainer, monkeypatch):
    trained, judged = drawn_by(trainer, monkeypatch)
    assert trained
    assert judged
    assert not trained & judged


def test_owners_have_equal_room_and_their_oldest_requests_go_first(checkpoint, samples, monkeypatch):
    length = max(len(sample.tokens) for sample in samples)
    trainer = OnlineTrainer(checkpoint, replace(FEW, tokens=4 * 8 * length, held_out=4))
    trainer.add(replace(sample, owner="few") for sample in samples[:16])
    trainer.add(replace(sample, owner="many") for sample in samples[16:])
    groups = trainer._samples._owners
    for owner, newest in (("few", samples[15]), ("many", samples[63])):
        train, held_out = groups[owner]
        tokens = [sum(len(parts[0].sequence) for parts in ring.requests) for ring in (train, held_out)]
        assert tokens[0] <= 3 * 4 * length
        assert tokens[1] <= 4 * length
        assert len(train.requests) >= 11
        assert tuple(held_out.requests[-1][0].sequence) == newest.tokens


def test_a_trainer_is_ready_until_its_requests_are_used_up(checkpoint, samples):
    trainer = OnlineTrainer(checkpoint, replace(FEW, uses=1))
    assert not trainer.is_ready
    trainer.add(samples[:40])
    assert not trainer.is_ready, "20 held-out requests are too few for a judgement"
    trainer.add(samples[40:])
    updates = 0
    while trainer.is_ready:
        trainer.update()
        updates += 1
    assert updates == 32 / 4
    trainer.add(samples[:1])
    assert trainer.is_ready


def test_long_requests_are_cut_into_windows_and_longer_ones_left_out(checkpoint):
    trainer = OnlineTrainer(checkpoint, replace(FEW, max_length=64, window=16, held_out=100, batch_tokens=128))
    trainer.add([Sample((1,) * 200, 3), Sample((1,) * 200, 100), Sample((1,) * 5, 5)])
    [parts] = trainer._samples._owners[""][0].requests
    assert [(window.start, window.end) for window in parts] == [(3, 16), (16, 32), (32, 48), (48, 64)]
    batch = trainer._draw()
    assert batch.tokens.numel() <= 128


def test_refusals_in_a_row_begin_again_from_the_served_module(checkpoint, samples):
    trainer = OnlineTrainer(checkpoint, replace(FEW, refusals=2, rate=0.5))
    trainer.add(samples)
    for _ in range(3):
        trainer.update()
    assert not trainer.judge().is_better
    bad = trainer.judge()
    assert bad.candidate != bad.served
    again = trainer.judge()
    assert again.candidate == again.served
    assert trainer.update().step == 3


@pytest.mark.parametrize("name", [*GOLDEN_NAMES[1:], DIFFCODER_NAME, FAST_DLLM_NAME])
def test_every_family_with_mrp_learns(name):
    checkpoint = load_checkpoint(GOLDEN / name)
    trainer = OnlineTrainer(checkpoint, FEW)
    trainer.add(samples_of(checkpoint, 50))
    before = trainer.judge()
    assert trainer.update().chain > 0
    assert before.served == before.candidate
    assert math.isfinite(trainer.judge().candidate)


@pytest.mark.parametrize("name", [EXPERTS_NAME, I_DLM_NAME])
def test_a_checkpoint_without_mrp_is_refused(name):
    with pytest.raises(SettingsError, match="has no MRP, which could learn"):
        OnlineTrainer(load_checkpoint(GOLDEN / name))


def test_quantized_weights_are_refused(checkpoint):
    quantized = replace(checkpoint, config=replace(checkpoint.config, quantization="int8"))
    with pytest.raises(SettingsError, match="the weights are in int8"):
        OnlineTrainer(quantized)


@pytest.mark.parametrize(
    ("served", "candidate", "error", "samples", "better"),
    [
        (1.0, 1.1, 0.03, 30, True),
        (1.0, 1.1, 0.03, 20, False),  # too few requests
        (1.0, 1.1, 0.05, 30, False),  # chance reaches it
        (1.0, 1.01, 0.001, 30, False),  # not worth an update
        (1.0, 1.0, 0.0, 30, False),
        (0.0, 0.0, math.inf, 0, False),
    ],
)
def test_a_candidate_is_better_by_more_than_chance_and_by_what_an_update_is_worth(
    served, candidate, error, samples, better
):
    assert Judgement(served, candidate, error, samples).is_better == better


def test_equal_modules_differ_by_chance_as_much_as_the_error_says():
    """A thousand judgements of 96 requests with equal modules."""
    rng, differences = torch.Generator().manual_seed(0), []
    for _ in range(1000):
        forwards = torch.randint(10, 40, (96, 2), generator=rng)
        accepted = torch.binomial(forwards.float(), torch.tensor(0.5).expand(96, 2), generator=rng).int()
        both = zip(forwards.tolist(), accepted.tolist(), strict=True)
        judgement = _compare([tuple(map(Yield, (0, 0), *row)) for row in both])
        differences.append((judgement.candidate - judgement.served) / judgement.error)
    assert torch.tensor(differences).std().item() == pytest.approx(1, abs=0.1)
    assert sum(difference > 2.5 for difference in differences) < 15
