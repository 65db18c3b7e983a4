"""The systemd unit: its keys, its folder and its limits."""

import shutil
import subprocess
import sys

import pytest

from service.cli.preflight import _FEW_FILES
from service.settings.settings import Settings
from tests.deploy.dockerfile import ROOT

UNIT = ROOT / "deploy" / "mrp-serve.service"
KEYS = dict(line.split("=", 1) for line in UNIT.read_text("utf-8").splitlines() if "=" in line and line[0] != "#")


def test_files_of_the_service_are_private() -> None:
    assert KEYS["Environment"] == f"HOME=/var/lib/{KEYS['StateDirectory']}"
    assert KEYS["StateDirectoryMode"] == "0700"


def test_a_wrong_flag_is_not_tried_again() -> None:
    command = [sys.executable, "-m", "service.cli", "serve", "--no-such-flag"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert KEYS["Restart"] == "on-failure"
    assert KEYS["RestartPreventExitStatus"] == str(done.returncode)


def test_its_limits_are_enough() -> None:
    assert int(KEYS["LimitNOFILE"]) > _FEW_FILES
    assert int(KEYS["TimeoutStopSec"]) > Settings().drain_timeout_s + 15


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_knows_every_key() -> None:
    """The program itself is not there, which is all that may be said."""
    done = subprocess.run(["systemd-analyze", "verify", UNIT], capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if "is not executable" not in line]
    assert [line for line in lines if "mrp-serve.service" in line] == []
