"""`mrp-serve check` and the program's errors."""

import json
import shutil
from pathlib import Path

import pytest

from service.decode.modes import MODES
from tests.model.test_published import publish
from tests.tiny import EXPERTS_NAME

GOLDEN = Path(__file__).parents[1] / "golden" / "sdar-mrp-random-b"


def test_check_says_what_a_checkpoint_is(run, capsys):
    assert run("check", GOLDEN, "--device", "cpu") == 0
    report = " ".join(capsys.readouterr().out.split())
    assert "MRP 3 layers, 0.13 M parameters" in report
    assert "MRP's kind residual, the default: config.json has no such key MRP's scale 1, the default" in report
    assert "block size 4, by config.json" in report
    assert ", ".join(MODES) in report
    assert "512 tokens, mask 509, end [510]" in report


def test_check_writes_the_kind_of_a_module_into_config_json(run, capsys, tmp_path):
    """Then every command decodes by it, such as `serve`, which has no options for it."""
    folder = shutil.copytree(GOLDEN, tmp_path / "mine")
    kind = ("--mrp-scale", "2", "--no-mrp-residual")
    assert run("check", folder, "--device", "cpu", *kind, "--write") == 0
    config = json.loads((folder / "config.json").read_text())
    assert (config["mrp_scale"], config["mrp_residual"], config["block_size"]) == (2.0, False, 4)
    capsys.readouterr()
    assert run("check", folder, "--device", "cpu") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "MRP's kind direct (no residual), by config.json MRP's scale 2, by config.json" in output


def test_check_says_what_experts_there_are(run, capsys):
    assert run("check", GOLDEN.parent / EXPERTS_NAME, "--device", "cpu") == 0
    report = " ".join(capsys.readouterr().out.split())
    assert "family sdar_moe" in report
    assert "backbone 0.28 M parameters" in report
    assert "experts 2 layers have 8, a token uses 2 of each, 0.17 M parameters in all" in report
    served = ", ".join(name for name, mode in MODES.items() if mode.served_without_mrp)
    assert f"modes {served} weights 1.1 MiB as torch.float32" in report
    assert "KV cache 0.75 KiB a token each of 2 devices 0.7 MiB of weights, 0.38 KiB of KV a token" in report
    assert "each of 4 devices 0.5 MiB of weights, 0.38 KiB of KV a token" in report  # two ranks have the same keys
    assert "each of 8" not in report
    assert run("check", GOLDEN.parent / EXPERTS_NAME, "--device", "cpu", "--kv-cache-dtype", "int8") == 0
    report = " ".join(capsys.readouterr().out.split())
    assert "KV cache 0.21 KiB a token each of 2 devices 0.7 MiB of weights, 0.11 KiB of KV a token" in report


def test_check_says_which_files_name_the_end_tokens_and_whether_the_head_is_tied(run, capsys, caplog, copied):
    file = copied / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tie_word_embeddings": True, "eos_token_id": 7}))
    (copied / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert run("check", copied, "--device", "cpu") == 0
    report = " ".join(capsys.readouterr().out.split())
    assert "512 tokens, mask 509, end [7, 9, 510]" in report
    ends = "7 by config.json, generation_config.json; 9 by generation_config.json; 510 by tokenizer_config.json"
    assert f"end tokens {ends} output head its own, which differs from the embedding" in report
    assert "config.json ties the output head to the embedding, but the files have another: it is used" in caplog.text


def test_check_warns_of_a_model_that_no_token_ends(run, capsys, copied):
    for file, key in (("config.json", "eos_token_id"), ("tokenizer_config.json", "eos_token")):
        content = json.loads((copied / file).read_text())
        (copied / file).write_text(json.dumps({name: value for name, value in content.items() if name != key}))
    assert run("check", copied, "--device", "cpu") == 0
    output = capsys.readouterr()
    assert "end tokens none" in " ".join(output.out.split())
    assert "warning: no file names an end token, so answers end at their limit only" in output.err


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


@pytest.fixture
def copied(tmp_path):
    return shutil.copytree(GOLDEN, tmp_path / "copy")


def test_check_says_what_the_tokenizer_can_do(run, capsys, copied):
    assert run("check", copied) == 0
    report = " ".join(capsys.readouterr().out.split())
    assert "tokenizer 512 tokens" in report
    assert "chat template none" in report
    assert "tools none: this checkpoint has no chat template" in report


@pytest.mark.parametrize("content", ["junk", "[]", '{"version": "1.0"}', "\udcff"])
def test_a_junk_tokenizer_is_an_error(run, capsys, copied, content):
    (copied / "tokenizer.json").write_bytes(content.encode(errors="surrogateescape"))
    assert run("check", copied) == 1
    report = capsys.readouterr()
    assert report.err.startswith(f"mrp-serve: {copied}: the tokenizer cannot be loaded: ")
    assert report.err.count("\n") == 1
    assert "decoded in" not in report.out


@pytest.mark.parametrize(
    ("form", "words"),
    [("w8a8", "torch.float32, matrices of layers as w8a8, as they are published"),
     ("w8a16 packed", "torch.float32, widened from 8 bits")],
)  # fmt: skip
def test_check_says_how_published_8_bit_weights_are_served(run, capsys, tmp_path, form, words):
    folder, _ = publish(tmp_path, GOLDEN.name, form)
    assert run("check", folder, "--device", "cpu") == 0
    assert f"as {words}" in " ".join(capsys.readouterr().out.split())


def test_a_template_that_cannot_be_used_is_a_warning(run, capsys, copied):
    config = copied / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": "{% for m in messages %}"}))
    assert run("check", copied) == 0
    report = capsys.readouterr()
    assert "chat template cannot be used" in " ".join(report.out.split())
    assert report.err.startswith("warning: the chat template cannot be used: Unexpected end of template.")


def test_check_does_not_write_into_the_cache_of_the_hub(run, capsys, tmp_path, monkeypatch):
    folder = shutil.copytree(GOLDEN, tmp_path / "models--owner--model" / "snapshots" / "0123abc")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder))
    before = (folder / "config.json").read_text()
    assert run("check", "owner/model", "--device", "cpu", "--write") == 1
    assert "--write changes folders, and owner/model is in the hub's cache" in capsys.readouterr().err
    assert (folder / "config.json").read_text() == before
