"""The destination and the form of log lines."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest

from service.errors import SettingsError
from service.settings.settings import Settings
from service.telemetry.logs import install_logs, log_formatter
from service.tracebacks import type_and_line, unexpected_error, without_message


def logged(settings: Settings) -> list[str]:
    install_logs(settings)
    logging.getLogger("service.some.where").info("hidden", extra={"request_id": "r0"})
    logging.getLogger("service.some.where").warning("a line", extra={"request_id": "r1", "ms": 1.5})
    assert settings.log_file
    return settings.log_file.read_text().splitlines()


def test_json_is_an_object_a_line(tmp_path: Path) -> None:
    (line,) = logged(Settings(log_format="json", log_file=tmp_path / "log"))
    read = json.loads(line)
    assert read.pop("time").endswith("Z")
    assert read == {
        "level": "warning", "logger": "service.some.where", "message": "a line", "request_id": "r1", "ms": 1.5
    }  # fmt: skip


def test_text_is_for_people(tmp_path: Path) -> None:
    (line,) = logged(Settings(log_file=tmp_path / "log"))
    assert "[warning" in line
    assert "a line" in line
    assert line.endswith("[service.some.where] ms=1.5 request_id=r1")


def test_the_level_is_the_settings(tmp_path: Path) -> None:
    assert len(logged(Settings(log_level="info", log_file=tmp_path / "log"))) == 2
    assert len(logged(Settings(log_level="error", log_file=tmp_path / "other"))) == 0


def test_a_second_call_takes_the_place_of_the_first(tmp_path: Path) -> None:
    install_logs(Settings(log_file=tmp_path / "first"))
    logged(Settings(log_file=tmp_path / "second"))
    assert (tmp_path / "first").read_text() == ""


def test_a_rotated_file_is_opened_anew(tmp_path: Path) -> None:
    settings = Settings(log_file=tmp_path / "log")
    logged(settings)
    (tmp_path / "log").rename(tmp_path / "log.1")
    assert len(logged(settings)) == 1


def test_without_a_file_lines_go_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    install_logs(Settings(log_format="json"))
    logging.getLogger("service.some.where").error("a line")
    logging.getLogger("elsewhere").info("another")
    assert json.loads(capfd.readouterr().err)["message"] == "a line"


def test_a_file_that_cannot_be_written_is_an_error_of_the_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"log_file is .*none/log, which cannot be written: No such file"):
        install_logs(Settings(log_file=tmp_path / "none" / "log"))


@pytest.mark.parametrize("kind", ["json", "text"])
def test_what_ray_adds_to_every_record_is_left_out(kind: str) -> None:
    record = logging.LogRecord("service", logging.INFO, "f", 1, "a line", (), None)
    record.__dict__["_ray_timestamp_ns"] = 1
    assert "_ray" not in log_formatter(kind).format(record)


def test_an_exception_is_part_of_the_line() -> None:
    try:
        raise ValueError("seen")
    except ValueError as error:
        record = logging.LogRecord("service", logging.ERROR, "f", 1, "failed", (), (ValueError, error, None))
    assert "ValueError: seen" in json.loads(log_formatter("json").format(record))["exception"]


def test_an_error_no_one_foresaw_is_told_by_type_and_line(caplog: pytest.LogCaptureFixture) -> None:
    try:
        try:
            raise KeyError("the prompt")
        except KeyError as cause:
            raise RuntimeError("the key") from cause
    except RuntimeError as error:
        told, ours = without_message(error), unexpected_error(error, "r1")
    assert told.count("test_logs.py") == 2
    assert told.count("raised from:") == 1
    assert "builtins.RuntimeError" in told
    assert "builtins.KeyError" in told
    shown = log_formatter("json").format(caplog.records[0])
    assert json.loads(shown)["request_id"] == "r1"
    assert ours.code == "internal_error"
    for secret in ("'the prompt'", "the key\n"):
        assert secret not in told + shown + ours.message


def test_a_kind_and_a_place_are_one_line() -> None:
    try:
        json.loads("the prompt")
    except json.JSONDecodeError as error:
        told = type_and_line(error)
    assert re.fullmatch(r"json\.decoder\.JSONDecodeError in json\.decoder, line \d+", told)
    assert type_and_line(ValueError("the prompt")) == "ValueError"
