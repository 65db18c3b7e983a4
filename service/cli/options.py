"""Options that several commands share. The options of a model also load it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from service.decode.knobs import KnobValue, knobs_in
from service.decode.modes import KNOBS, MODES
from service.errors import SettingsError
from service.settings.settings import Settings, section_of
from service.settings.sources import ALIASES

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from service.engine import EngineDeps
    from service.model import Checkpoint, LoadOptions

DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
BlockSizeOption = Annotated[int | None, typer.Option(help="Overrides the checkpoint's block size.")]
AttentionOption = Annotated[str, typer.Option(help="auto (triton on CUDA if it is installed), eager or triton.")]
RanksOption = Annotated[
    int, typer.Option("--tensor-parallel-size", min=1, help="Devices of this machine that hold the model together.")
]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="CPU threads for torch. Default: half the cores.")]


def _in_a_folder(output: Path | None) -> Path | None:
    """Checks, before the work begins, that the output can be written at the end."""
    if output and output.is_dir():
        raise SettingsError(f"out is {output}, which is a folder, not a file", param="out")
    if output and not output.parent.is_dir():
        raise SettingsError(f"out is {output}, but {output.parent} is not a folder", param="out")
    return output


OutputOption = Annotated[Path | None, typer.Option("--out", callback=_in_a_folder, help="Writes the rows as JSON.")]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The options of a checkpoint, its device and the type of its weights. None keeps the checkpoint's value."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="Checkpoint: a folder, or a hub name such as owner/name@revision. Default: the demo."
        ),
    ] = None
    block_size: BlockSizeOption = None
    mrp_residual: Annotated[
        bool | None,
        typer.Option("--mrp-residual/--no-mrp-residual", help="Overrides whether MRP's output is added to its input."),
    ] = None
    mrp_scale: Annotated[float | None, typer.Option(help="Overrides the factor of MRP's output.")] = None
    device: DeviceOption = "auto"
    dtype: Annotated[str, typer.Option(help="auto (bfloat16 on CUDA, else float32), float32, bfloat16, float16.")] = (
        "auto"
    )
    quantization: Annotated[
        str | None, typer.Option(help="Keeps the layers' matrices in 8 bits: fp8 or w8a8. Default: in the dtype.")
    ] = None

    @property
    def name(self) -> str | Path:
        from service.demo import CHECKPOINT

        return self.model or CHECKPOINT

    @property
    def loading(self) -> LoadOptions:
        """The options of loading. Raises SettingsError."""
        from service.model import LoadOptions
        from service.model.device import pick_device, pick_dtype
        from service.model.families.qwen3 import MAX_SCALE
        from service.model.quantization.schemes import scheme_named

        if self.mrp_scale is not None and not 0 < abs(self.mrp_scale) <= MAX_SCALE:
            expected = f"expected a finite number from {-MAX_SCALE:g} to {MAX_SCALE:g} and not 0"
            raise SettingsError(f"mrp_scale is {self.mrp_scale}, {expected}", param="mrp_scale")
        device = pick_device(self.device)
        return LoadOptions(
            pick_dtype(self.dtype, device),
            device,
            self.block_size,
            self.mrp_residual,
            self.mrp_scale,
            quantization=scheme_named(self.quantization).name if self.quantization else None,
        )

    def load(self) -> Checkpoint:
        """Loads the checkpoint. Raises CheckpointError or SettingsError."""
        from service.model import load_checkpoint

        return load_checkpoint(self.name, self.loading)

    @contextmanager
    def ranks(self, size: int) -> Iterator[tuple[Checkpoint, EngineDeps]]:
        """As `load`, on `size` devices, and the dependencies of an engine on them. The processes end with the block."""
        from service.engine import EngineDeps
        from service.parallel import TensorParallelExecutor

        if size == 1:
            yield self.load(), EngineDeps()
            return
        loading = self.loading
        with TensorParallelExecutor(size, loading.device) as executor:
            yield executor.load(self.name, loading), EngineDeps(ranks=executor)


def use_threads(threads: int | None, processes: int = 1) -> None:
    """Sets the number of torch's CPU threads. None: the default of `pick_threads`."""
    from service.model.device import set_threads

    set_threads(threads, processes)


# --- commands with options for knobs, fields or settings -------------------------------------------------

Knobs = Mapping[str, KnobValue]
CommandFunction = Callable[..., None]

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
#: the argument that is the option `--model`
_MODEL = inspect.Parameter(
    "model_argument",
    _KEYWORD,
    default=None,
    annotation=Annotated[str | None, typer.Argument(metavar="MODEL", help="As --model: a folder or a hub name.")],
)


def with_knobs(command: CommandFunction) -> CommandFunction:
    """The command with one option per knob instead of its parameter `knobs`, which gets the knobs with a value."""

    def value(name: str, option: Any) -> KnobValue:
        """A knob that takes numbers and a word gets a number if the text is one."""
        return int(option) if KNOBS[name].auto and option.removeprefix("-").isdigit() else option

    def knobs(values: Mapping[str, Any]) -> Knobs:
        return {name: value(name, option) for name, option in values.items() if option is not None}

    options = []
    for name, knob in KNOBS.items():
        modes = ", ".join(mode for mode, params in MODES.items() if name in knobs_in(params))
        kind: Any = str if knob.auto else knob.kind
        annotation: Any = Annotated[kind | None, typer.Option(help=f"{modes}: {knob.help}.")]
        options.append(inspect.Parameter(name, _KEYWORD, default=None, annotation=annotation))
    return _expanded(command, "knobs", options, knobs)


def with_fields(
    parameter: str, options: type[Any], without: Collection[str] = ()
) -> Callable[[CommandFunction], CommandFunction]:
    """Makes a command with one option per field of a class except `without`, instead of its parameter of that class."""
    hints = get_type_hints(options, include_extras=True)
    declared = [
        field.replace(kind=_KEYWORD, annotation=hints[name])
        for name, field in inspect.signature(options).parameters.items()
        if name not in without
    ]
    return lambda command: _expanded(command, parameter, declared, lambda values: options(**values))


def _expanded(
    command: CommandFunction,
    parameter: str,
    options: list[inspect.Parameter],
    value: Callable[[Mapping[str, Any]], Any],
) -> CommandFunction:
    """The command with `options` instead of a parameter, which gets the `value` of theirs.

    An option `--model` is also an argument of the command.
    """
    signature = inspect.signature(command, eval_str=True)
    argument = [_MODEL] if any(option.name == "model" for option in options) else []
    parameters: list[inspect.Parameter] = []
    for name, declared in signature.parameters.items():
        parameters += [*argument, *options] if name == parameter else [declared.replace(kind=_KEYWORD)]

    @wraps(command)
    def expanded(**values: Any) -> None:
        chosen = {option.name: values.pop(option.name) for option in options}
        if argument and (model := values.pop(_MODEL.name)) is not None:
            if chosen["model"] not in (None, model):
                raise SettingsError(
                    f"model is {model!r}, and --model is {chosen['model']!r}; give one of them", param="model"
                )
            chosen["model"] = model
        values[parameter] = value(chosen)
        command(**values)

    expanded.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {declared.name: declared.annotation for declared in parameters}
    return expanded


def with_settings(without: Collection[str] = ()) -> Callable[[CommandFunction], CommandFunction]:
    """Makes a command with an option per setting except `without`, instead of its parameter `settings`."""
    names = [name for name in Settings.model_fields if name not in without]
    options = [_setting_option(name, Settings.model_fields[name]) for name in names] + [
        _setting_option(alias, Settings.model_fields[name], alias=True)
        for alias, name in ALIASES.items()
        if name in names
    ]

    def settings(values: Mapping[str, Any]) -> Settings:
        return Settings(**{name: value for name, value in values.items() if value is not None})

    return lambda command: _expanded(command, "settings", options, settings)


def _setting_option(name: str, field: FieldInfo, *, alias: bool = False) -> inspect.Parameter:
    """A setting as an option. None means not given, so that environment and file still count. Aliases are hidden."""
    aliases = "".join(f"; also --{other.replace('_', '-')}" for other, setting in ALIASES.items() if setting == name)
    value = "the shipped demo" if name == "model" else field.default
    default = "" if value in (None, ()) else f" (default: {value})"
    kind, flag = _plain_type(field.annotation), name.replace("_", "-")
    option = typer.Option(
        None,
        f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}",
        *(("-m",) if name == "model" else ()),
        help=f"{field.description}{default}{aliases}",
        metavar=", ".join(_choices(field.annotation)) if kind in (int, str) else None,
        show_default=False,
        hidden=alias,
        rich_help_panel=None if alias else section_of(name),
    )
    return inspect.Parameter(name, _KEYWORD, default=option, annotation=kind | None)


def _choices(annotation: Any) -> list[str]:
    """The words that a setting may be, as --help shows them. `<int>` and `<str>` stand for any number and text."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if isinstance(annotation, type):
        return [f"<{annotation.__name__}>"] if annotation in (int, str) else []
    return [word for part in get_args(annotation) for word in _choices(part)]


def _plain_type(annotation: Any) -> Any:
    """The type into which a flag's text is converted: the first plain type of the annotation, else text."""
    if annotation in (bool, int, float, str, Path):
        return annotation
    plain = [_plain_type(part) for part in get_args(annotation) if part is not type(None)]
    return plain[0] if plain and plain[0] in (bool, int, float, Path) else str
