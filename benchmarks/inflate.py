"""`python -m benchmarks.inflate`: a checkpoint with the answers of a small one and the cost of a published shape."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.inflated import InflatedWeights
from benchmarks.options import run
from benchmarks.shapes import shape_named
from service.cli.options import DtypeOption, ModelOption, ModelOptions
from service.cli.output import notes
from service.errors import SettingsError
from service.model import read_config, resolve
from service.model.quantization.prequantized import dequantized
from service.model.weights import WeightFiles
from training.publish import write_checkpoint

#: files of the tokenizer; a calibration (quality.json) is of other weights and is not copied
_TEXT_FILES = ("tokenizer*", "*.jinja", "generation_config.json", "vocab.json", "merges.txt", "special_tokens_map.json")


def command(
    shape: Annotated[str, typer.Option(help="Published shape, such as sdar-1.7b or llada2-mini.")],
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint; must be new or empty.")],
    model: ModelOption = None,
    dtype: DtypeOption = "bfloat16",
) -> None:
    """Writes a checkpoint of a published shape that computes the same tokens as a small one."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SettingsError(f"out is {out}, which is not an empty folder", param="out")
    options = ModelOptions(model, device="cpu", dtype=dtype)
    small = resolve(options.name)
    sources = dequantized(read_config(small), WeightFiles(small))
    weights = InflatedWeights(*sources, shape_named(shape), options.loading)
    with notes().status("writing …"):
        write_checkpoint(out, weights.raw, weights)
    for pattern in _TEXT_FILES:
        for file in small.glob(pattern):
            shutil.copyfile(file, out / file.name)


if __name__ == "__main__":
    run(command)
