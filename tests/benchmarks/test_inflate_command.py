"""`python -m benchmarks.inflate` writes a checkpoint that serving can load."""

import json

import pytest

from benchmarks import shapes
from benchmarks.shapes import Shape
from service.demo import CHECKPOINT
from service.model import load_checkpoint
from training import publish


@pytest.fixture(autouse=True)
def small_shape(monkeypatch):
    monkeypatch.setitem(shapes.SHAPES, "sdar-1.7b", Shape(192, 400, 29, 8, 4, 32, 1100, 2048))


def test_what_is_written_generates_what_the_demo_does(run, run_program, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(publish, "_FILE_SIZE", 2**20)
    out = tmp_path / "large"
    assert run("inflate", "--shape", "sdar-1.7b", "--out", out, "--dtype", "float32") == 0
    assert not (out / "quality.json").exists()
    assert len(list(out.glob("*.safetensors"))) > 2
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == "float32"
    capsys.readouterr()
    said = []
    for model in (CHECKPOINT, out):
        assert run_program("generate", "--model", model, "--mode", "static", "--device", "cpu", "7 + 8 =") == 0
        said.append(capsys.readouterr().out.splitlines()[0])
    assert said[0] == said[1]
    assert run_program("check", out, "--device", "cpu") == 0
    assert "29 layers, hidden 192" in capsys.readouterr().out


def test_the_file_is_what_is_made_in_memory(run, tmp_path):
    from benchmarks.inflated import inflate
    from service.model import LoadOptions

    assert run("inflate", "--shape", "sdar-1.7b", "--out", tmp_path / "large", "--dtype", "float32") == 0
    written = load_checkpoint(tmp_path / "large")
    made = inflate(CHECKPOINT, shapes.SHAPES["sdar-1.7b"], LoadOptions())
    for module, other in ((written.backbone, made.backbone), (written.mrp, made.mrp)):
        for (name, weight), (_, same) in zip(module.named_parameters(), other.named_parameters(), strict=True):
            assert weight.equal(same), name


def test_a_folder_that_holds_something_is_refused(run, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert run("inflate", "--shape", "sdar-1.7b", "--out", tmp_path) == 1
    assert capsys.readouterr().err == f"benchmarks: out is {tmp_path}, which is not an empty folder\n"


def test_an_unknown_shape_is_refused(run, capsys, tmp_path):
    assert run("inflate", "--shape", "gpt", "--out", tmp_path / "new") == 1
    assert "shape is 'gpt', allowed are qwen3-0.6b, sdar-1.7b" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
