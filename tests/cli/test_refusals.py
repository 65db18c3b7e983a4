"""A wrong option gives one line with the allowed values, before anything is loaded or measured."""

import json

import pytest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--output", "nowhere/x.json"), "output is nowhere/x.json, but nowhere is not a folder"),
        (("--prompts", "nowhere.jsonl"), "the prompts nowhere.jsonl cannot be read: No such file"),
        (("--plan", "remask threshold"), "plan is 'remask threshold', expected is text such as 'remask thr"),
    ],
)
def test_one_line_says_what_is_allowed(run, capsys, words, message, monkeypatch, tmp_path):
    monkeypatch.setattr("service.cli.options.ModelOptions.ranks", lambda *_: pytest.fail("the checkpoint was loaded"))
    monkeypatch.chdir(tmp_path)
    assert run("frontier", *words) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"mrp-serve: {message}"), error
    assert len(error.splitlines()) == 1


def test_the_demos_scorer_names_a_prompt_that_is_not_the_demos(run, capsys, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"What is {number}?"}) + "\n" for number in range(4)))
    assert run("calibrate", "--prompts", file, *("--concurrency", 1, "--plan", "static")) == 1
    assert capsys.readouterr().err == (
        "mrp-serve: the prompt 'What is 0?' is no problem of the demo: name another scorer for prompts of your own\n"
    )


def test_answers_are_looked_for_before_anything_is_loaded(run, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("service.cli.options.ModelOptions.ranks", lambda *_: pytest.fail("the checkpoint was loaded"))
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "a", "answer": "b"}, {"prompt": "c"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("calibrate", "--prompts", file, *("--concurrency", 1, "--scorer", "exact")) == 1
    assert capsys.readouterr().err == ("mrp-serve: the line of the prompt 'c' has no answer, which this scorer needs\n")
