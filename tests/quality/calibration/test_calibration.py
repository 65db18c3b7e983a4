"""A calibration on a golden checkpoint: its jobs, its counts, and that it resumes."""

from dataclasses import replace
from pathlib import Path

import pytest

from service.decode.modes import MODES, Dynamic, Remask, Speculative, Static
from service.engine import Engine, EngineConfig
from service.model import load_checkpoint
from service.quality.calibration import measure
from service.quality.calibration.measure import Calibration, Scope
from service.quality.calibration.plans import default_plans
from service.quality.calibration.prompts import PromptTask
from service.quality.calibration.records import ChunkRecord, Notebook, PlanChunk, make_rows

FOLDER = Path(__file__).parents[2] / "golden" / "sdar-mrp-random-a"
PLANS = [Static(), Speculative(2), Dynamic(0.05), Remask(0.05)]
SCOPE = Scope(max_new_tokens=12)


@pytest.fixture(autouse=True, scope="module")
def chunks():
    """Small chunks; lossless plans answer two of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "CHUNK", 2)
        patch.setattr(measure, "LOSSLESS_PROMPTS", 4)
        yield


@pytest.fixture(scope="module")
def engine():
    return Engine(load_checkpoint(FOLDER), EngineConfig(kv_cache_tokens=2048, prefix_cache=False))


@pytest.fixture(scope="module")
def first(engine):
    """Static's first token of each prompt."""
    return {number: engine.generate([_request(number)])[0].token_ids[0] for number in range(7)}


@pytest.fixture(scope="module")
def tasks(first):
    """An answer is right if it begins with static's first token, so that other plans are wrong now and then."""
    return [
        PromptTask((number, 7, 9), lambda answer, number=number, token=token: number != 3 and answer[0] == token)
        for number, token in first.items()
    ]


@pytest.fixture(scope="module")
def calibration(engine, tasks):
    return Calibration(engine, tasks, PLANS, SCOPE)


def _request(number):
    from service.engine import GenerationRequest

    return GenerationRequest(str(number), (number, 7, 9), Static(), max_new_tokens=12)


def test_every_plan_answers_the_first_prompts_lossless_ones_no_others(calibration):
    jobs = calibration.jobs
    static, drafted, dynamic, remask = calibration.plan_names
    assert [job.start for job in jobs if job.plan == drafted] == [0, 2]
    for plan in (static, dynamic, remask):
        assert [job.start for job in jobs if job.plan == plan] == [0, 2, 4, 6]
    assert [job.plan for job in jobs[:4]] == calibration.plan_names  # in turns


@pytest.fixture(scope="module")
def greedy_rows(calibration):
    """The rows of a whole run at temperature 0."""
    notebook = Notebook(None, {})
    assert list(calibration.run(notebook)) == calibration.jobs
    return calibration.rows(notebook)


def test_rows_have_the_counts_of_their_records(greedy_rows):
    static, drafted, dynamic, remask = greedy_rows
    assert [row.prompts for row in (static, drafted, dynamic, remask)] == [7, 4, 7, 7]
    assert static.tokens_per_forward <= 1.0 < dynamic.tokens_per_forward
    assert drafted.identical == drafted.prompts
    assert drafted.accuracy == static.accuracy == static.right / 7
    assert (drafted.difference, drafted.difference_low, drafted.difference_high) == (0.0, 0.0, 0.0)
    assert dynamic.identical < 7
    assert dynamic.difference == pytest.approx((dynamic.right - static.right) / 7)
    assert dynamic.right == static.right + dynamic.gained - dynamic.lost
    for row in (static, drafted, dynamic, remask):
        assert row.accuracy_low <= row.accuracy <= row.accuracy_high


@pytest.fixture(scope="module")
def measured(engine, tasks):
    """The rows of a run with temperatures above 0."""
    warm = Calibration(engine, tasks, PLANS, SCOPE._replace(temperatures=(0.1, 1.0)))
    notebook = Notebook(None, {})
    assert list(warm.run(notebook)) == warm.jobs
    return warm.rows(notebook)


class TestTemperatures:
    """Accuracy is also measured at temperatures above 0, of the plans that a preset may allow."""

    def test_all_prompts_are_answered_by_static_and_what_is_near_it(self, measured):
        static, drafted, *lossy = measured
        assert [result.temperature for result in static.sampled] == [0.1, 1.0]
        assert drafted.sampled == []
        near = [row for row in lossy if row.difference >= -0.05]
        assert [bool(row.sampled) for row in lossy] == [row in near for row in lossy]
        for row in (static, *near):
            assert [result.prompts for result in row.sampled] == [7, 7]
            for result, plain in zip(row.sampled, static.sampled, strict=True):
                assert result.right == plain.right + result.gained - result.lost
                assert result.difference == pytest.approx((result.right - plain.right) / 7)


class TestRowsOfMadeUpRecords:
    def record(self, plan, start, right, answers=("a", "a")):
        return ChunkRecord(PlanChunk(plan, start), right, answers, tokens=10, forwards=5)

    def test_pairs_and_tokens(self):
        static, dynamic = "static tokens_per_step=1", "dynamic threshold=0.5"
        records = [
            self.record(static, 0, [True, False]),
            self.record(dynamic, 0, [False, True], answers=["a", "b"]),
            self.record(static, 2, [True, True]),
            self.record(dynamic, 2, [False, True]),
            self.record(static, 4, [True, True]),
            self.record(dynamic, 4, [True, True]),
        ]
        _, second = make_rows([Static(), Dynamic(0.5)], records)
        assert (second.gained, second.lost, second.identical) == (1, 2, 5)
        assert second.difference == pytest.approx(-1 / 6)
        assert second.tokens_per_forward == 2.0


ABOUT = {"plans": ["a"], "prompts": 4}
RECORD = ChunkRecord(PlanChunk("a", 0), [True], ["x"], tokens=3, forwards=3)


class TestNotebook:
    def test_of_another_calibration_is_begun_anew(self, tmp_path):
        Notebook(tmp_path / "partial", ABOUT).add(RECORD)
        assert Notebook(tmp_path / "partial", ABOUT).records == {RECORD.job: RECORD}
        assert Notebook(tmp_path / "partial", {"plans": ["b"]}).records == {}
        assert Notebook(tmp_path / "partial", ABOUT).records == {}

    def test_a_line_that_was_cut_off_is_left_out(self, tmp_path):
        path = tmp_path / "partial"
        Notebook(path, ABOUT).add(RECORD)
        with path.open("a") as file:
            file.write('{"job": ["a"')
        resumed = Notebook(path, ABOUT)
        assert len(resumed.records) == 1
        resumed.add(replace(RECORD, job=PlanChunk("a", 1)))
        assert len(Notebook(path, ABOUT).records) == 2


class TestGrid:
    def test_has_every_mode_static_first_nothing_twice(self):
        plans = default_plans(16, has_mrp=True)
        assert plans[:2] == [Static(), Speculative()]
        assert len(set(plans)) == len(plans)
        assert {plan.name for plan in plans} == set(MODES)

    def test_without_mrp_and_in_small_blocks_only_what_runs(self):
        assert not any(plan.needs_mrp for plan in default_plans(16, has_mrp=False))
        assert Speculative() in default_plans(16, has_mrp=False)
        assert not any(plan.name == "edit" for plan in default_plans(16, has_mrp=False, causal=True))
        for plan in default_plans(2, has_mrp=True):
            plan.check(2)
