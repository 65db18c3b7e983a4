"""What counts as right, by every scorer, and names that are none."""

import pytest

from service.errors import SettingsError
from service.quality.calibration.prompts import find_scorer


@pytest.mark.parametrize(
    ("name", "answer", "text", "right"),
    [
        ("exact", "six", " six\n", True),
        ("exact", "six", "Six", False),
        ("contains", "six", "it is six, I think", True),
        ("number", "#### 1,234", "so 5 + 7 = 12, and then 1234.0", True),
        ("number", "6", "6, no, 7", False),
        ("number", "6", "six", False),
        ("number", "-3", "that is -3", True),
        (r"regex:answer is (\S+)\.", "6", "the answer is 5. no, the answer is 6.", True),
        (r"regex:answer is ([\d,]+)", 1000, "the answer is 1,000 or so", True),
        (r"regex:answer is (\w+)", "six", "six", False),
    ],
)
def test_a_text_is_right(name, answer, text, right):
    assert find_scorer(name)({"prompt": "?", "answer": answer}, text) is right


def test_the_demos_checker_needs_no_answer():
    line = {"prompt": "Sam has 6 books, loses 5."}
    assert find_scorer("demo")(line, "Let x be 6 - 5, so x = 1. The answer is 1.")
    assert not find_scorer("demo")(line, "The answer is 1.")


def test_one_of_your_own(tmp_path, monkeypatch):
    (tmp_path / "my_scorers.py").write_text("def loud(line, text):\n    return text == line['prompt'].upper()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["elsewhere"])
    assert find_scorer("my_scorers:loud")({"prompt": "a"}, "A")
    with pytest.raises(SettingsError, match="'my_scorers:quiet', which cannot be imported"):
        find_scorer("my_scorers:quiet")


@pytest.mark.parametrize("name", ["best", "regex:", "regex:(", "regex:six", "no_such_module:f", ":f"])
def test_an_unknown_scorer_is_refused(name):
    with pytest.raises(SettingsError, match="scorer is"):
        find_scorer(name)
