"""`mrp-serve frontier`: small real runs."""

import json
import shutil

import pytest

from service.quality.schema import PlanResult, read_quality
from tests.tiny import GOLDEN

PLANS = ("static", "dynamic threshold=0.05", "speculative mrp_steps=2")


@pytest.fixture
def model(tmp_path):
    shutil.copytree(GOLDEN / "sdar-mrp-random-a", tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def options(model, tmp_path):
    """Three plans at two loads."""
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"w{number} w7 w9", "answer": "w"} for number in range(4)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    values = {"model": model, "prompts": prompts, "scorer": "contains", "max-new-tokens": 8, "threads": 1}
    words = [word for name, value in values.items() for word in (f"--{name}", value)]
    loads = [word for together in (1, 2) for word in ("--concurrency", together)]
    return [*words, "--timed", 4, "--temperature", 0, *loads, *(word for plan in PLANS for word in ("--plan", plan))]


def test_the_frontier_is_a_table_and_rows(run, capsys, model, options, tmp_path):
    rows = tmp_path / "rows.json"
    assert run("frontier", *options, "--output", rows) == 0
    table = capsys.readouterr().out
    heads = (
        "plan",
        "accuracy",
        "from static",
        "identical",
        "tok/forward",
        "ms/token at 1",
        "ms/token at 2",
        "frontier",
    )
    assert all(head in table.splitlines()[0] for head in heads)
    content = json.loads(rows.read_text("utf-8"))
    results = [PlanResult.model_validate(row) for row in content["rows"]]
    assert [row.plan.mode for row in results] == ["static", "dynamic", "speculative"]
    assert content["measured"]["concurrency"] == [1, 2]
    for load in (1, 2):
        assert any(row.speed_at(load).on_frontier for row in results)
    assert {path.name for path in tmp_path.iterdir()} == {"model", "prompts.jsonl", "rows.json"}
    assert not (model / "quality.json").exists()


def test_the_frontier_goes_on_where_it_was_interrupted(run, options, monkeypatch, tmp_path):
    from service.quality.calibration.measure import Calibration

    measure, left, measured_jobs = Calibration._measure, iter(range(5)), []

    def interrupted(self, job):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return measure(self, job)

    monkeypatch.setattr(Calibration, "_measure", interrupted)
    assert run("frontier", *options, "--output", tmp_path / "rows.json") == 130
    monkeypatch.setattr(Calibration, "_measure", lambda self, job: measured_jobs.append(job) or measure(self, job))
    assert run("frontier", *options, "--output", tmp_path / "rows.json") == 0
    assert len(measured_jobs) == 3 * 4 + 3 * 2 - 5


def test_a_calibration_is_the_same_measurement(run, options, model, tmp_path, monkeypatch):
    from service.quality.calibration.measure import Calibration

    jobs, measure = [], Calibration._measure
    monkeypatch.setattr(Calibration, "_measure", lambda self, job: jobs.append(job) or measure(self, job))
    assert run("frontier", *options) == 0
    done = list(jobs)
    assert run("calibrate", *options) == 0
    assert jobs == done * 2
    assert read_quality(model / "quality.json").measured.concurrency == [1, 2]
