"""Options that several commands share, and the functions that load the checkpoint and the devices they name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.errors import SettingsError

if TYPE_CHECKING:
    from service.engine import EngineDeps
    from service.model import Checkpoint, LoadOptions

ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="Checkpoint: a folder or a hub name. Default: the shipped demo.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
DtypeOption = Annotated[str, typer.Option(help="auto (bfloat16 on CUDA, else float32), float32, bfloat16, float16.")]
QuantizationOption = Annotated[
    str | None, typer.Option(help="Keeps the layers' matrices in 8 bits: int8, fp8 or w8a8. Default: in the dtype.")
]
BlockSizeOption = Annotated[int | None, typer.Option(help="Overrides the checkpoint's block size.")]
AttentionOption = Annotated[str, typer.Option(help="auto (triton on CUDA if it is installed), eager or triton.")]
RanksOption = Annotated[
    int, typer.Option("--tensor-parallel-size", min=1, help="Devices of this machine that hold the model together.")
]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="CPU threads for torch. Default: half the cores.")]


def _in_a_folder(output: Path | None) -> Path | None:
    """Checks, before the work begins, that the output can be written at the end."""
    if output and output.is_dir():
        raise SettingsError(f"output is {output}, which is a folder, not a file", param="output")
    if output and not output.parent.is_dir():
        raise SettingsError(f"output is {output}, but {output.parent} is not a folder", param="output")
    return output


OutputOption = Annotated[Path | None, typer.Option(callback=_in_a_folder, help="Writes the rows as JSON.")]


def load(model: str | None, options: LoadOptions) -> Checkpoint:
    """Loads the named checkpoint, None for the demo. Raises CheckpointError or SettingsError."""
    from service.demo import CHECKPOINT
    from service.model import load_checkpoint

    return load_checkpoint(model or CHECKPOINT, options)


@contextmanager
def ranks_of(size: int, model: str | None, options: LoadOptions) -> Iterator[tuple[Checkpoint, EngineDeps]]:
    """As `load`, on `size` devices, and the dependencies of an engine on them. The processes end with the block."""
    from service.demo import CHECKPOINT
    from service.engine import EngineDeps
    from service.parallel import TensorParallelExecutor

    if size == 1:
        yield load(model, options), EngineDeps()
        return
    with TensorParallelExecutor(size, options.device) as executor:
        yield executor.load(model or CHECKPOINT, options), EngineDeps(ranks=executor)


def load_options(
    device: str, dtype: str, block_size: int | None = None, quantization: str | None = None
) -> LoadOptions:
    """Options by the names of device, dtype and quantization. Raises SettingsError."""
    from service.model import LoadOptions
    from service.model.device import pick_device, pick_dtype
    from service.model.quantization.schemes import scheme_named

    picked, scheme = pick_device(device), scheme_named(quantization).name if quantization else None
    return LoadOptions(pick_dtype(dtype, picked), picked, block_size, quantization=scheme)


def use_threads(threads: int | None, processes: int = 1) -> None:
    """Sets the number of torch's CPU threads. None: the default of `pick_threads`."""
    from service.model.device import set_threads

    set_threads(threads, processes)
