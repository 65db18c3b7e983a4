"""`mrp-serve calibrate`, `frontier` and `quality`: small real runs, and refused options."""

import json
import shutil

import pytest

from service.quality.calibration.measure import Calibration
from service.quality.schema import Plan, PlanResult, read_quality
from tests.tiny import GOLDEN

PLANS = ("static", "dynamic threshold=0.05", "speculative mrp_steps=2", "remask threshold=0.05")
DEFAULT = "speculative mrp_steps=auto"


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("service.quality.calibration.measure.CHUNK", 2)
    monkeypatch.setattr("service.quality.calibration.measure.LOSSLESS_PROMPTS", 4)


@pytest.fixture
def model(tmp_path):
    shutil.copytree(GOLDEN / "sdar-mrp-random-a", tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def options(model, tmp_path):
    """Measurements of some plans at two temperatures."""
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"w{number} w7 w9", "answer": "w"} for number in range(6)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    values = {"model": model, "prompts": prompts, "scorer": "contains", "max-new-tokens": 8}
    words = [word for name, value in values.items() for word in (f"--{name}", value)]
    words += ["--temperature", 0.7]
    return lambda plans: [*words, *(word for plan in plans for word in ("--plan", plan))]


def test_calibrate_writes_the_file_of_the_presets(run, priced, capsys, model, options):
    assert run("calibrate", *options(PLANS)) == 0
    output = capsys.readouterr()
    assert "lossless: " in output.out
    assert "dynamic threshold=0.05" in output.out
    file = read_quality(model / "quality.json")
    assert [row.plan.name for row in file.rows][1:] == [DEFAULT, *PLANS[1:]]
    assert file.rows[0].accuracy == 1.0
    assert (file.measured.prompts, file.measured.temperatures) == (6, [0, 0.7])
    assert [result.prompts for result in file.rows[0].sampled] == [6]
    assert [row.prompts for row in file.rows] == [6, 4, 6, 4, 6]
    assert [plan.name for plan in file.presets["lossless"]] == [DEFAULT]
    approximate = len(file.presets["fast"]) > 1
    assert any("take more prompts" in warning for warning in file.warnings) or not approximate
    assert {path.name for path in model.parent.iterdir()} == {"model", "prompts.jsonl"}
    assert not list(model.glob("*.partial"))
    for source in (model, model / "quality.json"):
        assert run("quality", source) == 0
        assert capsys.readouterr().out == output.out
    words = ("--model", model, "--quality", "fast", "--max-new-tokens", 8, "--json")
    assert run("generate", "w1 w7 w9", "--raw", *words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert Plan(mode=answer["mode"], knobs=answer["knobs"]) in [
        Plan(mode=plan.mode, knobs=plan.knobs) for plan in file.presets["fast"]
    ]
    assert run("check", model) == 0
    assert f"fast: {' or '.join(plan.name for plan in file.presets['fast'])}" in " ".join(
        capsys.readouterr().out.split()
    )


def test_quality_without_a_calibration_says_how_to_make_one(run, capsys, model):
    assert run("quality", model) == 1
    assert capsys.readouterr().err.startswith(
        f"mrp-serve: {model} has no quality.json; make one with `mrp-serve calibrate"
    )


def num_jobs(lossy, lossless):
    """All plans on the first prompts; lossy plans and static on the others, and all at 0.7."""
    return (1 + lossy + lossless) * 2 + (1 + lossy) * (1 + 3)


def test_the_frontier_is_the_measurement_of_calibrate_as_a_table_and_rows(
    run, capsys, model, options, tmp_path, monkeypatch
):
    jobs, measure = [], Calibration.measure
    monkeypatch.setattr(Calibration, "measure", lambda self, job: jobs.append(job) or measure(self, job))
    assert run("frontier", *options(PLANS), "--out", tmp_path / "rows.json") == 0
    assert len(jobs) == num_jobs(lossy=2, lossless=2)
    head = capsys.readouterr().out.splitlines()[0]
    for column in ("plan", "accuracy", "from static", "identical", "tok/forward", "frontier"):
        assert column in head
    content = json.loads((tmp_path / "rows.json").read_text("utf-8"))
    results = [PlanResult.model_validate(row) for row in content["rows"]]
    assert [row.plan.mode for row in results] == ["static", "speculative", "dynamic", "speculative", "remask"]
    assert {path.name for path in tmp_path.iterdir()} == {"model", "prompts.jsonl", "rows.json"}
    assert not (model / "quality.json").exists()


def test_an_interrupted_calibration_resumes(run, capsys, model, options, monkeypatch):
    measure, left = Calibration.measure, iter(range(7))

    def interrupted(self, job):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return measure(self, job)

    monkeypatch.setattr(Calibration, "measure", interrupted)
    assert run("calibrate", *options(PLANS[:2])) == 130
    assert "run the same command again to resume" in capsys.readouterr().err
    partial = model / "quality.json.partial"
    assert len(partial.read_text("utf-8").splitlines()) == 1 + 7
    jobs = []
    monkeypatch.setattr(Calibration, "measure", lambda self, job: jobs.append(job) or measure(self, job))
    assert run("calibrate", *options(PLANS[:2])) == 0
    assert len(jobs) == num_jobs(lossy=1, lossless=1) - 7
    assert not partial.exists()


@pytest.fixture
def unloaded(monkeypatch):
    """No checkpoint may be loaded."""
    monkeypatch.setattr("service.cli.options.ModelOptions.ranks", lambda *_: pytest.fail("a checkpoint was loaded"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--scorer", "best"), "scorer is 'best', allowed are demo, exact, contains, number, regex:PATTERN"),
        (("--count", 7), "count is 7"),
        (("--plan", "swift"), "mode is 'swift'"),
    ],
)
def test_calibrate_refuses_wrong_options_before_it_loads_anything(run, unloaded, capsys, options, more, message):
    assert run("calibrate", *options(PLANS), *more) == 1
    assert message in capsys.readouterr().err


def test_a_target_that_cannot_be_written_is_refused_before_anything_is_measured(run, capsys, options):
    assert run("calibrate", *options(PLANS), "--out", "nowhere/quality.json") == 1
    assert "nowhere/quality.json cannot be written: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out", "nowhere/x.json"), "out is nowhere/x.json, but nowhere is not a folder"),
        (("--prompts", "nowhere.jsonl"), "the prompts nowhere.jsonl cannot be read: No such file"),
        (("--plan", "remask threshold"), "plan is 'remask threshold', expected is text such as 'remask thr"),
    ],
)
def test_frontier_says_in_one_line_what_is_allowed(run, unloaded, capsys, words, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run("frontier", *words) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"mrp-serve: {message}"), error
    assert len(error.splitlines()) == 1


def test_the_demos_scorer_names_a_prompt_that_is_not_the_demos(run, capsys, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"What is {number}?"}) + "\n" for number in range(4)))
    assert run("calibrate", "--prompts", file, "--plan", "static") == 1
    assert capsys.readouterr().err == (
        "mrp-serve: the prompt 'What is 0?' is no problem of the demo: name another scorer for prompts of your own\n"
    )


def test_answers_are_looked_for_before_anything_is_loaded(run, unloaded, capsys, tmp_path):
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "a", "answer": "b"}, {"prompt": "c"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("calibrate", "--prompts", file, "--scorer", "exact") == 1
    assert capsys.readouterr().err == ("mrp-serve: the line of the prompt 'c' has no answer, which this scorer needs\n")


def test_every_checkpoint_but_the_demo_needs_prompts_and_a_scorer(run, capsys, model):
    assert run("calibrate", "--model", model) == 1
    assert "prompts is missing; only the demo has a default" in capsys.readouterr().err
    assert run("calibrate", "--model", model, "--prompts", "p.jsonl") == 1
    assert "scorer is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--quality", "best"), "quality is 'best', allowed are lossless, balanced, fast"),
        (("--quality", "fast", "--mode", "static"), "quality is 'fast' and mode is given, allowed is one of them"),
        (("--quality", "fast", "--threshold", 0.5), "quality is 'fast' and threshold is given"),
        (("--quality", "fast"), "this checkpoint has no quality.json"),
    ],
)
def test_generate_refuses_wrong_qualities(run, capsys, model, more, message):
    assert run("generate", "w1 w2", "--raw", "--model", model, *more) == 1
    assert message in capsys.readouterr().err
