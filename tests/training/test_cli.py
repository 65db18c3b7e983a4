"""`mrp-serve train-mrp` as a user calls it."""

import json
import re
from pathlib import Path

import pytest
import torch

from service.model import load_checkpoint

GOLDEN = Path(__file__).parents[1] / "golden" / "sdar-mrp-random-a"


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "texts.jsonl"
    texts = (" ".join(f"w{(7 * number + index) % 500}" for index in range(12 + number)) for number in range(12))
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


def options(data, out, **more):
    values = {"backbone": GOLDEN, "data": data, "out": out, "steps": 3, "batch": 2, "device": "cpu", "threads": 1}
    return [word for name, value in (values | more).items() for word in (f"--{name}", value)]


def stored(out):
    """The values on which the updates of a training depend."""
    return json.loads(torch.load(out / "training/state.pt", weights_only=True)["plan"])


def test_the_published_recipe_is_one_option_and_its_values_can_be_changed(run_program, capsys, data, tmp_path):
    words = options(data, tmp_path / "out", recipe="published", accumulate=2, **{"batch-tokens": 96, "batch": 50})
    assert run_program("train-mrp", *words) == 0
    assert "K=1" in capsys.readouterr().err
    values = stored(tmp_path / "out")
    expected = {
        "module.layers": 3,
        "objective.trajectories": 0.0,
        "objective.reveals": 1,
        "objective.copies": 1,
        "objective.inverse_rate": True,
        "schedule.rate": 1e-3,
        "schedule.floor": 0.1,
        "schedule.cosine": True,
        "schedule.warmup": 0,
        "budget.matrices": "adamw",
        "budget.tokens": 96,
        "budget.batches": 2,
        "source.max_length": 4096,
    }
    assert {name: values[name] for name in expected} == expected
    [phase] = values["objective.phases"]
    weights = {"next_pick": 0.0, "order": 0.0, "revision": 0.0}
    assert phase == {"start": 0.0, "applications": 1, "weights": weights}
    mrp = load_checkpoint(tmp_path / "out").config.mrp
    assert (mrp.num_layers, mrp.residual, mrp.default_steps) == (3, True, 1)
    capsys.readouterr()
    assert run_program("train-mrp", *options(data, tmp_path / "out", **{"batch-tokens": 96, "batch": 50})) == 1
    assert "--recipe was published, is default" in " ".join(capsys.readouterr().err.split())


def test_without_options_the_best_measured_recipe_trains(run_program, capsys, data, tmp_path):
    assert run_program("train-mrp", *options(data, tmp_path / "out")) == 0
    assert "revision" not in capsys.readouterr().err  # which is off
    values = stored(tmp_path / "out")
    assert (values["module.layers"], values["objective.trajectories"], values["budget.matrices"]) == (3, 1.0, "muon")
    last = values["objective.phases"][-1]
    assert (last["applications"], last["weights"]["next_pick"], last["weights"]["order"]) == (2, 4.0, 0.25)


def test_it_says_what_it_found_trains_and_says_how_good_it_is(run_program, capsys, data, tmp_path):
    losses = {"trajectories": 0.5, "next-pick": 4, "order": 0.25, "revision": 0.5, "heldout": 0.25, "layers": 2}
    assert run_program("train-mrp", *options(data, tmp_path / "out", **losses), "--direct") == 0
    output = capsys.readouterr()
    assert "12 lines: 9 examples to train on, 3 held out" in output.err
    assert "tokens/forward" in output.out
    assert f"  hf upload OWNER/out {tmp_path / 'out'} . --exclude 'training/*'\n" in output.out
    assert output.out.endswith(f"done: mrp-serve serve {tmp_path / 'out'}\n")
    mrp = load_checkpoint(tmp_path / "out").config.mrp
    assert (mrp.num_layers, mrp.residual, mrp.default_steps) == (2, False, 2)
    assert len((tmp_path / "out/training/losses.jsonl").read_text().splitlines()) == 3
    prefixes = re.findall(r"^(\d/3  K=.*?) \d+\.\d{4}  revision \d+\.\d{4}$", output.err, re.MULTILINE)
    assert prefixes == ["1/3  K=1 KL", "2/3  K=1 KL", "3/3  K=2 KL + 0.25 order"]


def test_cut_lines_and_an_earlier_state_are_mentioned(run_program, capsys, data, tmp_path):
    words = options(data, tmp_path / "out", **{"max-length": 16, "save-every": 2})
    assert run_program("train-mrp", *words) == 0
    assert "8 lines were too long and are cut (--max-length)" in " ".join(capsys.readouterr().err.split())
    assert run_program("train-mrp", *words) == 0
    assert "resumes after update 3" in " ".join(capsys.readouterr().err.split())


def test_a_bad_line_leaves_no_bar_on_a_terminal(run_program, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    data = tmp_path / "bad.jsonl"
    data.write_text('{"messages": []}\n')
    assert run_program("train-mrp", *options(data, tmp_path / "out")) == 1
    assert capsys.readouterr().err == (
        f"mrp-serve: {data}, line 1: 'messages' is an empty list, at least one message is expected\n"
    )


@pytest.mark.parametrize(("option", "value"), [("lr", -1), ("clip", 0), ("lr", 0), ("unroll", 0), ("layers", 0)])
def test_a_number_that_trains_nothing_is_refused_before_anything_is_loaded(
    run_program, capsys, data, tmp_path, option, value
):
    assert run_program("train-mrp", *options(data, tmp_path / "out", **{option: value})) == 2
    output = capsys.readouterr().err
    assert f"--{option}" in output
    assert "lines:" not in output


def test_a_result_that_has_no_place_is_named(run_program, capsys, data):
    assert run_program("train-mrp", *options(data, data)) == 1
    assert capsys.readouterr().err == f"mrp-serve: out is {data}, which cannot be a folder: Not a directory\n"


def test_an_interrupted_training_says_that_it_goes_on(run_program, capsys, data, tmp_path, monkeypatch):
    def interrupted(self, report):
        raise KeyboardInterrupt

    monkeypatch.setattr("training.state.RunFolder.log", interrupted)
    assert run_program("train-mrp", *options(data, tmp_path / "out")) == 130
    assert capsys.readouterr().err.splitlines()[-1] == (
        "interrupted; the same command resumes from the last state, which is written every 100 updates"
    )
