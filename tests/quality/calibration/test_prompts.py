"""The prompts' file, and what is said of one that is none."""

import pytest

from service.errors import SettingsError
from service.quality.calibration.prompts import read_prompts


def test_lines_in_order_and_a_hash_of_those_that_are_taken(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "answer": 1}\n\n{"prompt": "b", "more": [2]}\n', "utf-8")
    everything, first = read_prompts(path), read_prompts(path, 1)
    assert everything.lines == ({"prompt": "a", "answer": 1}, {"prompt": "b", "more": [2]})
    assert first.lines == everything.lines[:1]
    assert first.sha256 != everything.sha256
    with pytest.raises(SettingsError, match=r"count is 3, .*prompts\.jsonl has 2 lines"):
        read_prompts(path, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no prompts"),
        ('{"prompt": "a"}\n{', "line 2 is not JSON"),
        ('["a"]', "line 1 is .*an object with the text `prompt` is expected"),
        ('{"prompt": 3}', "an object with the text `prompt` is expected"),
        ('{"messages": []}', "an object with the text `prompt` is expected"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, text, message):
    (tmp_path / "prompts.jsonl").write_text(text, "utf-8")
    with pytest.raises(SettingsError, match=message):
        read_prompts(tmp_path / "prompts.jsonl")
