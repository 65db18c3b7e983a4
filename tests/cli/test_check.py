"""`mrp-serve check` and the program's errors."""

import re
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "sdar-mrp-random-b"


def test_check_says_what_a_checkpoint_is(run, capsys):
    assert run("check", GOLDEN, "--device", "cpu") == 0
    said = capsys.readouterr().out
    assert "3 layers, residual, scale 1" in said
    assert "static, dynamic, sequential, entropy, direct, speculative, remask" in " ".join(said.split())
    assert "512 tokens, mask 509, end [510]" in said


def test_an_error_is_one_line_on_stderr(run, capsys, tmp_path):
    assert run("check", tmp_path) == 1
    assert capsys.readouterr().err == f"mrp-serve: {tmp_path} has no config.json\n"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--dtype", "int3", "dtype is 'int3', allowed are 'auto', 'float32', 'bfloat16', 'float16'"),
        ("--device", "tpuu", "device is 'tpuu', expected 'auto', 'cpu', 'cuda' or 'cuda:N'"),
        ("--block-size", "999", "block size 999 is not supported: allowed are 1 to 128"),
    ],
)
def test_bad_options_say_what_is_allowed(run, capsys, option, value, message):
    assert run("check", GOLDEN, option, value) == 1
    assert message in capsys.readouterr().err


COMMANDS = "serve generate eval calibrate quality bench loads determinism check key train-mrp"


def test_commands_are_listed(run, capsys):
    assert run("--help") == 0
    _, _, listed = capsys.readouterr().out.partition(" Commands ")
    assert re.findall(r"^. ([a-z-]+)  +\S", listed, re.MULTILINE) == COMMANDS.split()


@pytest.mark.parametrize("name", COMMANDS.split())
def test_every_command_has_its_own_page(run, capsys, name):
    assert run(name, "--help") == 0
    assert f" {name} [OPTIONS]" in capsys.readouterr().out
