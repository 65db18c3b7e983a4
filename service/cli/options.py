"""Options that several commands share, and what they load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.errors import SettingsError

if TYPE_CHECKING:
    from service.demo import Problem
    from service.model import Checkpoint

Model = Annotated[
    str | None, typer.Option("--model", "-m", help="Checkpoint: a folder or a hub name. Default: the shipped demo.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="auto (bfloat16 on CUDA, else float32), float32, bfloat16, float16.")]
BlockSize = Annotated[int | None, typer.Option(help="Overrides the checkpoint's block size.")]
Attention = Annotated[str, typer.Option(help="auto (triton on CUDA if it is installed), eager or triton.")]
Several = Annotated[list[int], typer.Option(min=1, help="Concurrent requests; may be given again.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads for torch. Default: half the cores.")]


def _in_a_folder(output: Path | None) -> Path | None:
    """What is written at the end is known to have a place before the work begins."""
    if output and output.is_dir():
        raise SettingsError(f"output is {output}, which is a folder, not a file", param="output")
    if output and not output.parent.is_dir():
        raise SettingsError(f"output is {output}, but {output.parent} is no folder", param="output")
    return output


Output = Annotated[Path | None, typer.Option(callback=_in_a_folder, help="Writes the rows as JSON.")]


def heldout(count: int, option: str, seed: int) -> list[Problem]:
    """So many of the demo's held-out problems. SettingsError, with the option's name, where there are fewer."""
    from service.demo import heldout_problems

    if count > (known := len(heldout_problems())):
        raise SettingsError(f"{option} is {count}, allowed are 1 to {known}", param=option)
    return heldout_problems(count, seed)


def load(model: str | None, device: str, dtype: str, block_size: int | None, *, zero_mrp: bool = False) -> Checkpoint:
    """Loads the named checkpoint, or the demo. Raises CheckpointError or SettingsError."""
    from service.demo import CHECKPOINT
    from service.model import LoadOptions, load_checkpoint
    from service.model.options import pick_device, pick_dtype

    place = pick_device(device)
    options = LoadOptions(pick_dtype(dtype, place), place, block_size, mrp_zero=zero_mrp)
    return load_checkpoint(model or CHECKPOINT, options)


def use_threads(threads: int | None) -> None:
    """Sets torch's CPU threads: the number given, or the default of `pick_threads`."""
    import torch

    from service.model.options import pick_threads

    torch.set_num_threads(pick_threads(threads))
