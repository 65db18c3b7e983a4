"""`mrp-serve serve`: wrong settings, which it refuses before it starts anything, its last lines, and its log."""

import os
import shutil
import subprocess
import sys

import pytest

from service.cli.serve import LogPipe, _ready
from service.settings.settings import Settings
from tests.tiny import GOLDEN

WRITER = (
    "import sys; log = open(sys.argv[1], 'a'); [log.write(f'{sys.argv[2]} {n}\\n') or log.flush() for n in range(50)]"
)


@pytest.mark.parametrize("fewest", [0, 1])
def test_one_machines_service_is_of_a_fixed_size(run, capsys, fewest):
    assert run("serve", "--num-replicas", fewest, "--max-replicas", 2) == 1
    output = capsys.readouterr().err
    assert "max_replicas is 2: this program runs a fixed number of replicas" in output
    assert "`serve run deploy/serve.yaml`" in output


def test_a_calibration_that_is_broken(run, capsys, tmp_path):
    shutil.copytree(GOLDEN / "sdar-mrp-random-a", tmp_path, dirs_exist_ok=True)
    (tmp_path / "quality.json").write_text('{"version": 4, "rows": 3}', "utf-8")
    assert run("serve", "--model", tmp_path) == 1
    output = capsys.readouterr().err
    assert f"{tmp_path}/quality.json is no calibration file of version 4: checkpoint: Field required" in output


@pytest.mark.parametrize("keys", [{}, {"api_keys": "secret"}, {"api_keys_file": "keys.yaml"}])
def test_the_command_to_try_has_a_place_for_the_key_where_one_is_asked_for(keys):
    output = _ready(Settings(**keys), 3.0, "cpu")
    assert ("-H 'Authorization: Bearer KEY' " in output) == bool(keys)
    assert "secret" not in output


@pytest.mark.parametrize(
    ("proxies", "past"),
    [
        ({}, False),
        ({"http_proxy": "http://127.0.0.1:9"}, True),
        ({"ALL_PROXY": "http://127.0.0.1:9"}, True),
        ({"https_proxy": "http://127.0.0.1:9"}, False),
        ({"http_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1"}, False),
        ({"http_proxy": "http://127.0.0.1:9", "no_proxy": "example.org"}, True),
    ],
)
def test_the_command_to_try_goes_past_proxies_that_curl_would_ask(monkeypatch, proxies, past):
    monkeypatch.delenv("no_proxy", raising=False)
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)
    assert ("try: curl -s --noproxy '*' http://" in _ready(Settings(), 3.0, "cpu")) is past


@pytest.mark.parametrize(("host", "url"), [("::1", "http://[::1]:8000"), ("::", "http://[::1]:8000")])
def test_an_address_of_ipv6_stands_in_brackets(host, url):
    assert f"is served on {url} after 3 s, on cuda: L40S;" in _ready(Settings(host=host), 3.0, "cuda: L40S")


@pytest.mark.parametrize(
    ("chosen_settings", "warns"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "0.0.0.0", "api_keys": "sesame"}, False),
        ({"host": "127.0.0.1"}, False),
        ({"host": "::1"}, False),
        ({"host": "::"}, True),
    ],
)
def test_a_service_without_keys_that_others_may_reach_says_so(chosen_settings, warns):
    assert ("warning: no API keys are set" in _ready(Settings(**chosen_settings), 3.0, "cpu")) is warns


def test_lines_of_other_processes_come_out_whole(tmp_path, capsys):
    with LogPipe(tmp_path) as pipe:
        writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(pipe.path), name]) for name in "ab"]
        assert [writer.wait(30) for writer in writers] == [0, 0]
        with pipe.path.open("a") as late:
            late.write("späť\n")
    stderr_lines = capsys.readouterr().err.splitlines()
    assert sorted(stderr_lines[:-1]) == sorted(f"{name} {number}" for name in "ab" for number in range(50))
    assert stderr_lines[-1] == "späť"
    assert not pipe.path.exists()


def test_lines_are_taken_from_other_processes_also_if_nobody_reads_stderr(tmp_path, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as broken, monkeypatch.context() as patch, LogPipe(tmp_path) as pipe:
        patch.setattr(sys, "stderr", broken)
        for _ in range(3):  # each fills the pipe, and waits until its lines are taken
            with pipe.path.open("a") as lines:
                lines.write("x\n" * 2**16)
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # its buffer is written when it closes
