"""A whole training: a servable folder, a resume that is bit-exact, and a kill that loses only the last updates."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from service.decode.modes import Speculative, Static
from service.engine import Engine, GenerationRequest
from service.errors import CheckpointError, SettingsError
from service.model import load_checkpoint
from service.quality.schema import FILE_NAME
from service.replica.card import read_examples
from service.text import TextCodec
from tests.tiny import DIFFCODER_NAME, EXPERTS_NAME, FAST_DLLM_NAME, I_DLM_NAME, LLADA2_NAME, LLADA22_NAME
from tests.training.conftest import curve
from training.card import write_card
from training.config import Budget, Keeping, Module, Source, TrainingConfig
from training.conversations import Corpus
from training.lessons import Objective, phases_up_to
from training.losses import Weights
from training.optim import Schedule
from training.session import Watcher, train
from training.trainer import Team

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "sdar-mrp-random-a"


def plan_of(data, out, **changes):
    """A small plan with every loss on, half noise and half trajectories."""
    plan = TrainingConfig(
        Source(str(GOLDEN), data, heldout=0.1),
        Objective(phases_up_to(2, Weights(4.0, 0.25, 0.5)), trajectories=0.5, copies=2),
        Schedule(3e-3, warmup=2),
        Budget(steps=7, rows=3, batches=2),
        Keeping(out, save_every=4, judged=1),
        Module(layers=1),
    )
    return replace(plan, **changes)


def run(plan, watcher=None):
    return train(plan, TextCodec.load, "cpu", Team(), watcher or Watcher())


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A training that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole")
    return out, run(plan_of(data, out))


def test_the_result_is_a_checkpoint_that_decodes(whole):
    out, scores = whole
    source, result = load_checkpoint(GOLDEN), load_checkpoint(out)
    assert result.config.mrp.num_layers == 1
    assert result.config.mrp.default_steps == 2
    assert all(map(torch.equal, source.backbone.state_dict().values(), result.backbone.state_dict().values()))
    [completion] = Engine(result).generate([GenerationRequest("x", (1, 2, 3), Speculative(2), max_new_tokens=16)])
    assert completion.stats.forwards.mrp > 0
    assert (out / "tokenizer.json").read_bytes() == (GOLDEN / "tokenizer.json").read_bytes()
    mrp, zero = json.loads((out / "heldout.json").read_text()).values()
    assert mrp["divergence"] == scores[0].divergence
    assert zero["tokens_per_forward"] >= 1


def test_the_card_has_the_backbone_the_data_and_the_scores(whole):
    out, scores = whole
    text = (out / "README.md").read_text()
    matter = yaml.safe_load(text.split("---\n")[1])
    assert matter == {
        "library_name": "mrp-serve",
        "pipeline_tag": "text-generation",
        "tags": ["block-diffusion", "mrp"],
    }
    assert f"# {out.name}\n" in text
    assert "| data | texts.jsonl: 40 lines, " in text
    for name, score in zip(("MRP", "zero"), scores, strict=True):
        assert re.search(rf"\| {name} \| .* \| {score.tokens_per_forward:.3f} \|\n", text)


def test_the_card_names_a_backbone_of_the_hub_and_shows_prompts_of_the_data(tmp_path):
    lines = [
        {"messages": [{"role": "user", "content": "Was ist „w5“?"}, {"role": "assistant", "content": "w6"}]},
        {"prompt": "w1 " * 100, "completion": "w2"},
        {"prompt": "w1 w2", "completion": "w3"},
        {"text": "w9"},
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "abc"
    plan = plan_of(data, tmp_path, source=Source(str(snapshot), data))
    write_card(plan, Corpus([], [], 4, 0), {})
    assert yaml.safe_load((tmp_path / "README.md").read_text().split("---\n")[1])["base_model"] == "owner/name"
    chat, text = read_examples(tmp_path)
    assert chat.messages == ({"role": "user", "content": "Was ist „w5“?"},)
    assert text.text == "w1 w2"


@pytest.mark.parametrize("name", [EXPERTS_NAME, LLADA2_NAME, LLADA22_NAME])
def test_a_backbone_with_experts_gets_an_mrp_that_drafts(data, tmp_path, name):
    """The texts fit into LLaDA2's first block of 32, so its experts get no tokens of a clean part."""
    source = GOLDEN.parent / name
    run(plan_of(data, tmp_path, source=Source(str(source), data, heldout=0.0), budget=Budget(steps=3, rows=3)))
    result = load_checkpoint(tmp_path)
    assert result.config.experts == load_checkpoint(source).config.experts
    plain = GenerationRequest("x", (1, 2, 3), Static(), max_new_tokens=16)
    drafted = replace(plain, request_id="y", mode=Speculative(2))
    first, second = Engine(result).generate([plain, drafted])
    assert first.token_ids == second.token_ids
    assert second.stats.forwards.mrp > 0


@pytest.mark.parametrize(("name", "family"), [(DIFFCODER_NAME, "stable_diffcoder"), (FAST_DLLM_NAME, "Fast_dLLM_Qwen")])
def test_another_family_keeps_its_name_beside_mrps_architecture(data, tmp_path, name, family):
    """Stable-DiffCoder is known by its architecture, which a module replaces. Fast-dLLM's outputs are shifted."""
    source = GOLDEN.parent / name
    run(plan_of(data, tmp_path, source=Source(str(source), data, heldout=0.0), budget=Budget(steps=3, rows=3)))
    result = load_checkpoint(tmp_path)
    assert result.config.family == family
    assert result.raw["architectures"] == ["SDARMRPForCausalLM"]
    plain = GenerationRequest("x", (1, 2, 3), Static(), max_new_tokens=16)
    first, second = Engine(result).generate([plain, replace(plain, request_id="y", mode=Speculative(2))])
    assert first.token_ids == second.token_ids
    assert second.stats.forwards.mrp > 0


def test_a_causal_backbone_is_refused(data, tmp_path):
    source = str(GOLDEN.parent / I_DLM_NAME)
    with pytest.raises(CheckpointError, match="num_nextn_predict_layers is not 0: a causal model has no MRP"):
        run(plan_of(data, tmp_path, source=Source(source, data, heldout=0.0), budget=Budget(steps=1, rows=3)))


def test_measurements_of_the_backbones_weights_are_not_copied(data, tmp_path):
    source, out = tmp_path / "backbone", tmp_path / "out"
    shutil.copytree(GOLDEN, source)
    for measured in (FILE_NAME, "heldout.json"):
        (source / measured).write_text("{}")
    (source / "generation_config.json").write_text("{}")
    plan = plan_of(data, out, source=Source(str(source), data, heldout=0.0), budget=Budget(steps=1, rows=3))
    assert run(plan) is None
    assert (out / "generation_config.json").is_file()
    modes = {file.name: file.stat().st_mode & 0o777 for file in out.iterdir() if file.is_file()}
    assert set(modes.values()) == {modes["config.json"]}, modes  # whoever may read one may read all
    assert not {FILE_NAME, "heldout.json"} & {path.name for path in out.iterdir()}


def test_the_result_does_not_take_the_backbones_place(data, tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "backbone")
    plan = plan_of(data, tmp_path / "backbone", source=Source(str(tmp_path / "backbone"), data))
    with pytest.raises(SettingsError, match=r"out is .*, which is the backbone's own folder: choose another one"):
        run(plan)


def test_every_update_is_logged_and_the_unrolling_grows(whole):
    lines = curve(whole[0])
    assert [line["step"] for line in lines] == list(range(1, 8))
    assert [line["applications"] for line in lines] == [1] * 3 + [2] * 4
    assert all(line["chain"] > 0 for line in lines)


def test_two_workers_make_the_updates_of_one_with_all_batches(whole, data, tmp_path, monkeypatch):
    """One of them here, one in a process of its own; their gradients meet on the loopback device."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    program = (
        "import sys; from tests.training.test_session import *\n"
        "join_and_run(1, plan_of(Path(sys.argv[1]), Path(sys.argv[2])))"
    )
    with subprocess.Popen([sys.executable, "-c", program, data, tmp_path], cwd=ROOT) as other:
        try:
            join_and_run(0, plan_of(data, tmp_path))
            assert other.wait(60) == 0
        finally:
            other.kill()
    pairs = zip(curve(whole[0]), curve(tmp_path), strict=True)
    assert all(
        team[key] == pytest.approx(alone[key], rel=1e-3) for alone, team in pairs for key in ("chain", "revision")
    )


def join_and_run(rank, plan):
    """A worker of a team of two."""
    meeting = f"file://{plan.keeping.out}/meeting"
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    try:
        train(plan, TextCodec.load, "cpu", Team(rank, 2), Watcher())
    finally:
        torch.distributed.destroy_process_group()


class Stopped(Exception):
    """Ends a run in the middle."""


def test_an_interrupted_training_resumes_to_the_bit(whole, data, tmp_path):
    """A kill leaves what the disk has after an update, so a copy made at that time is continued."""
    running, left = tmp_path / "running", tmp_path / "left"

    def stop(report):
        if report.step == 6:
            shutil.copytree(running, left)
            raise Stopped

    starts = []
    with pytest.raises(Stopped):
        run(plan_of(data, running), Watcher(update=stop))
    assert len(curve(left)) == 6
    run(plan_of(data, left), Watcher(start=lambda start: starts.append(start.step)))
    assert starts == [4]
    assert curve(left) == curve(whole[0])
    assert weights(left) == weights(whole[0])


def weights(out):
    return {name: value.tolist() for name, value in load_checkpoint(out).mrp.state_dict().items()}


def test_a_half_written_state_is_not_taken(whole, data, tmp_path):
    with pytest.raises(Stopped):
        run(plan_of(data, tmp_path), Watcher(update=lambda report: stop_at(report, 5)))
    (tmp_path / "training" / "state.pt.new").write_bytes(b"half")
    with (tmp_path / "training" / "losses.jsonl").open("a") as log:
        log.write('{"step": 6, "cha')
    run(plan_of(data, tmp_path))
    assert curve(tmp_path) == curve(whole[0])


def stop_at(report, step):
    if report.step == step:
        raise Stopped


def test_another_plan_in_the_same_folder_is_refused_by_the_names_of_its_options(whole, data):
    objective = Objective(phases_up_to(3, Weights(4.0, 0.5, 0.5)), trajectories=0.5, copies=2)
    plan = plan_of(data, whole[0], budget=Budget(steps=99, rows=3, batches=2, bf16=False), objective=objective)
    with pytest.raises(SettingsError) as refused:
        run(plan)
    assert refused.value.message == (
        f"{whole[0] / 'training'} holds a training with other options: --fp32 was no, is yes; "
        "--order was 0.25, is 0.5; --steps was 7, is 99; --unroll was 2, is 3."
        " Choose another folder, or give the earlier options"
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"module": Module(layers=4)}, "layers is 4, allowed are 1 to the backbone's 3"),
        ({"objective": Objective(phases_up_to(8, Weights()))}, "unroll is 8, allowed are 1 to 7"),
    ],
)
def test_a_module_that_the_backbone_cannot_have_is_refused(data, tmp_path, changes, problem):
    with pytest.raises(SettingsError, match=problem):
        run(plan_of(data, tmp_path, **changes))


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
GROUPS = {"group": {"weights": {"num_bits": 8, "strategy": "channel"}}}
W8A16 = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": GROUPS}


@pytest.mark.parametrize("quantization", [FP8, W8A16], ids=["fp8", "w8a16"])
def test_a_backbone_with_8_bit_matrices_is_refused(data, tmp_path, quantization):
    folder = shutil.copytree(GOLDEN, tmp_path / "backbone")
    raw = json.loads((folder / "config.json").read_text()) | {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(SettingsError, match="the backbone's files have 8-bit matrices, expected are the wide ones"):
        run(plan_of(data, tmp_path / "out", source=Source(str(folder), data, heldout=0.0)))


def test_batches_must_be_shared_evenly(data, tmp_path):
    with pytest.raises(SettingsError, match="2 batches per update cannot be shared evenly by 3 workers"):
        train(plan_of(data, tmp_path), TextCodec.load, "cpu", Team(0, 3), Watcher())
