"""The destination and the form of log lines."""

import json
import logging
import re

import pytest

from service.settings.settings import Settings
from service.telemetry.logs import install_logs, log_formatter
from service.tracebacks import error_for_client, type_and_line, without_message


def logged(capfd: pytest.CaptureFixture[str], **settings: str) -> list[str]:
    install_logs(Settings(**settings))
    logging.getLogger("service.some.where").info("hidden", extra={"request_id": "r0"})
    logging.getLogger("service.some.where").warning("a line", extra={"request_id": "r1", "ms": 1.5})
    logging.getLogger("elsewhere").info("another")
    return capfd.readouterr().err.splitlines()


def test_json_is_an_object_per_line(capfd: pytest.CaptureFixture[str]) -> None:
    (line,) = logged(capfd, log_format="json")
    read = json.loads(line)
    assert read.pop("time").endswith("Z")
    assert read == {
        "level": "warning", "logger": "service.some.where", "message": "a line", "request_id": "r1", "ms": 1.5
    }  # fmt: skip


def test_text_is_for_people(capfd: pytest.CaptureFixture[str]) -> None:
    (line,) = logged(capfd)
    assert "[warning" in line
    assert "a line" in line
    assert line.endswith("[service.some.where] ms=1.5 request_id=r1")


def test_the_level_is_the_setting(capfd: pytest.CaptureFixture[str]) -> None:
    assert len(logged(capfd, log_level="info")) == 2
    assert len(logged(capfd, log_level="error")) == 0


@pytest.mark.parametrize("kind", ["json", "text"])
def test_fields_of_ray_are_left_out(kind: str) -> None:
    record = logging.makeLogRecord({"name": "service", "msg": "a line", "_ray_timestamp_ns": 1})
    assert "_ray" not in log_formatter(kind).format(record)


def test_an_unexpected_error_is_logged_by_type_and_line(caplog: pytest.LogCaptureFixture) -> None:
    try:
        try:
            raise KeyError("the prompt")
        except KeyError as cause:
            raise RuntimeError("the key") from cause
    except RuntimeError as error:
        description, ours = without_message(error), error_for_client(error, "r1")
    assert description.count("test_logs.py") == 2
    assert description.count("raised from:") == 1
    assert "builtins.RuntimeError" in description
    assert "builtins.KeyError" in description
    record_line = log_formatter("json").format(caplog.records[0])
    assert json.loads(record_line)["request_id"] == "r1"
    assert ours.code == "internal_error"
    for secret in ("'the prompt'", "the key\n"):
        assert secret not in description + record_line + ours.message


def test_type_and_line_are_one_line() -> None:
    try:
        json.loads("the prompt")
    except json.JSONDecodeError as error:
        description = type_and_line(error)
    assert re.fullmatch(r"json\.decoder\.JSONDecodeError in json\.decoder, line \d+", description)
    assert type_and_line(ValueError("the prompt")) == "ValueError"
