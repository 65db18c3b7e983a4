"""`mrp-serve generate` on the shipped checkpoint."""

import json

import pytest

from service.decode.modes import MODES
from service.demo import check

STORY = "Tom has 5 apples, gets 3, loses 2."


def test_generate_answers_on_stdout_and_tells_statistics_on_stderr(run, capsys):
    assert run("generate", STORY, "--mode", "static", "--seed", 3) == 0
    output = capsys.readouterr()
    assert check(STORY, output.out.strip())
    assert "tokens a forward" in output.err
    assert "seed 3" in output.err


def test_generate_as_json_uses_the_servers_default_mode(run, priced, capsys):
    assert run("generate", STORY, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["mode"] == "speculative"
    assert answer["tokens_per_forward"] > 1
    assert answer["finish_reason"] == "stop"
    assert check(STORY, answer["text"])


def test_generate_keeps_to_a_constraint(run, priced, capsys, tmp_path):
    digits = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 1, "maxItems": 2}
    (tmp_path / "digits.json").write_text(json.dumps(digits))
    assert run("generate", STORY, "--schema", tmp_path / "digits.json") == 0
    assert set(json.loads(capsys.readouterr().out)) <= set(range(10))
    assert run("generate", STORY, "--choice", "yes", "--choice", "no") == 0
    assert capsys.readouterr().out.strip() in {"yes", "no"}


def test_generate_refuses_an_empty_prompt_with_and_without_a_template(run, capsys):
    for options in ((), ("--raw",)):
        assert run("generate", "", *options) == 1
        assert capsys.readouterr().err == "mrp-serve: the prompt is empty, at least one token is needed\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mode", "static", "--threshold", 0.5), "mode 'static' does not use threshold; its knobs are tokens"),
        (("--mode", "fast"), f"mode is 'fast', allowed are {', '.join(MODES)}"),
        (("--mrp-steps", 99), "mrp_steps is 99, allowed are 0 to 8 (the block size) and 'auto'"),
        (("--max-new-tokens", 5000), "maximum context length is 1024 tokens"),
    ],
)
def test_generate_refuses_wrong_options(run, capsys, options, message):
    assert run("generate", STORY, *options) == 1
    assert message in capsys.readouterr().err
