"""The output of a batch: whole lines, each once, whatever was cut off, by one process at a time."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from service.batch.journal import Journal
from service.batch.lines import BatchLine
from service.errors import SettingsError


def output(number: int, custom_id: str = "", error: object = None) -> dict[str, Any]:
    return {"id": "x", "custom_id": custom_id or f"line-{number}", "line": number, "response": {}, "error": error}


def test_written_lines_are_known_again(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    with Journal(file) as journal:
        journal.write(output(3, "ä"))
        journal.write(output(1, error={"code": "x"}))
        assert (journal.count, journal.errors) == (2, 1)
    with Journal(file) as journal:
        assert (journal.count, journal.errors) == (2, 1)
        lines = [BatchLine(1, "line-1"), BatchLine(2, "b"), BatchLine(3, "ä"), BatchLine(9, "i")]
        assert [journal.has(line) for line in lines] == [True, False, True, False]


@pytest.mark.parametrize("left", [1, 2, 10, 60])
@pytest.mark.parametrize("rest", [b"", b"\0\0\0"])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, left: int, rest: bytes) -> None:
    file = tmp_path / "out.jsonl"
    with Journal(file) as journal:
        for number in (1, 2):
            journal.write(output(number))
    content = file.read_bytes()
    file.write_bytes(content[:-left] + rest)
    with Journal(file) as journal:
        assert [journal.has(BatchLine(number, f"line-{number}")) for number in (1, 2)] == [True, False]
        journal.write(output(2))
    assert file.read_bytes() == content


def test_a_number_that_json_lacks_is_null(tmp_path: Path) -> None:
    with Journal(tmp_path / "out.jsonl") as journal:
        journal.write(output(1) | {"response": {"score": float("nan")}})
    assert json.loads((tmp_path / "out.jsonl").read_text())["response"] == {"score": None}


def test_a_write_that_the_system_cuts_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, text: write(file, bytes(text[:7])))
    with Journal(tmp_path / "out.jsonl") as journal:
        journal.write(output(1))
    assert json.loads((tmp_path / "out.jsonl").read_text()) == output(1)


def test_answers_to_another_input_are_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "out.jsonl") as journal:
        journal.write(output(1, "a"))
        with pytest.raises(SettingsError, match="belongs to another input"):
            journal.has(BatchLine(1, "b"))


@pytest.mark.parametrize("content", ["hello\n", '{"prompt": "x"}\n', "[]\n", '{"line": "1", "custom_id": "a"}\n'])
def test_a_file_that_is_no_output_is_refused_and_stays(tmp_path: Path, content: str) -> None:
    file = tmp_path / "out.jsonl"
    file.write_text(content)
    with pytest.raises(SettingsError, match="line 1 is no answer of a batch"):
        Journal(file)
    assert file.read_text() == content


def test_two_batches_cannot_write_one_file(tmp_path: Path) -> None:
    with Journal(tmp_path / "out.jsonl"), pytest.raises(SettingsError, match="another batch"):
        Journal(tmp_path / "out.jsonl")
    with Journal(tmp_path / "out.jsonl"):
        pass


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"out is .*: No such file"):
        Journal(tmp_path / "absent" / "out.jsonl")


def test_a_full_disk_is_an_error_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with Journal(tmp_path / "out.jsonl") as journal, monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        with pytest.raises(SettingsError, match=r"which cannot be written: No space left"):
            journal.write(output(1))
