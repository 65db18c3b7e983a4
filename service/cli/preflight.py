"""Checks before a service starts, so that errors are reported at once. Loads no weights, and torch only for CUDA."""

import resource
from pathlib import Path

from service.cli import private
from service.cli.own_port import in_url
from service.errors import SettingsError
from service.gateway.http.sockets import bind, max_connections
from service.model.files import pinned
from service.rayserve.trouble import full_disk
from service.settings.settings import Settings

#: open files of a process below which the program warns
_FEW_FILES = 1024


def check(settings: Settings) -> Settings:
    """The settings with a hub model pinned to its commit. SettingsError or CheckpointError if it could not start."""
    private.token()
    folder = private.base()
    if problem := full_disk(folder):  # Ray would wait for its processes and name no reason
        raise SettingsError(f"{problem}, and Ray keeps its logs and sockets there: set RAY_TMPDIR to another folder")
    _check_settings(settings)
    _check_device(settings)
    checkpoint = _check_checkpoint(settings)
    try:
        bind(settings.host, settings.port).close()  # listens for a moment as the ingress will
    except OSError as error:
        address = f"{in_url(settings.host)}:{settings.port}"
        raise SettingsError(f"cannot listen on {address}: {error.strerror}", param="port") from error
    return settings.model_copy(update={"model": pinned(settings.model, checkpoint)})


def check_room(settings: Settings) -> None:
    """SettingsError if Ray, which runs, has found fewer CPUs or GPUs than the replicas to start need."""
    import ray

    from service.app import wants_gpu

    each, resources = settings.tensor_parallel_size, ray.cluster_resources()
    for unit in ("CPU", "GPU") if wants_gpu(settings.device) else ("CPU",):
        if resources.get(unit, 0) < settings.num_replicas * each:
            raise SettingsError(
                f"num_replicas is {settings.num_replicas} and every replica needs "
                f"{f'a {unit}' if each == 1 else f'{each} {unit}s (tensor_parallel_size)'}, "
                f"but Ray finds {resources.get(unit, 0):g} on this machine",
                param="num_replicas",
            )


def device(settings: Settings) -> str:
    """The replicas' device in words. Ray, which runs, knows the types of GPUs."""
    import ray

    from service.app import wants_gpu

    if not wants_gpu(settings.device):
        return "cpu (no GPU seen)" if settings.device == "auto" else "cpu"
    names = [name.partition(":") for name in ray.cluster_resources()]
    return f"cuda: {', '.join(kind for prefix, _, kind in names if prefix == 'accelerator_type') or 'unknown type'}"


def warnings() -> list[str]:
    """What allows a start, but little load."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or files >= _FEW_FILES:
        return []
    connections = max_connections()
    return [
        f"a process may have {files} open files (`ulimit -n`), so {connections} connections; {_FEW_FILES} are advised"
    ]


def _check_settings(settings: Settings) -> None:
    from service.admission.keys import KeyRing

    if settings.otlp_endpoint:
        from service.telemetry.tracing import start_tracing

        if tracing := start_tracing(settings):
            tracing.close()
    KeyRing.load(settings)
    KeyRing.load_admins(settings)
    if settings.autoscaled:
        raise SettingsError(
            f"max_replicas is {settings.max_replicas}: this program runs a fixed number of replicas, num_replicas; "
            "Serve scales what `serve run deploy/serve.yaml` deploys (docs/deploy.md)",
            param="max_replicas",
        )


def _check_device(settings: Settings) -> None:
    """Checks device and attention with torch, whose import takes seconds. The usual ones always work."""
    if settings.device in {"auto", "cpu"} and settings.attention_backend in {"auto", "eager"}:
        return
    import torch

    from service.model.attention.registry import resolve_backend
    from service.model.device import pick_device, pick_dtype

    device = pick_device(settings.device)
    resolve_backend(settings.attention_backend, torch.device(device), pick_dtype(settings.dtype, device))


def _check_checkpoint(settings: Settings) -> Path:
    """The folder of a checkpoint whose config, calibration, weights and tokenizer are whole."""
    from service.model import parse_config, read_config, resolve
    from service.model.config import Shard
    from service.model.files import check_weights
    from service.model.quantization.schemes import activation_parts, chosen_scheme
    from service.quality.presets import file_of
    from service.quality.schema import file_name
    from service.replica.start import check_learning
    from service.text import check_tokenizer

    folder = resolve(settings.model)
    config, ranks = parse_config(read_config(folder), block_size=settings.block_size), settings.tensor_parallel_size
    Shard(0, ranks).divide(config)
    if settings.online_mrp_dir is not None:
        check_learning(config)
    scheme = chosen_scheme(config.quantization, settings.quantization)
    file_of(folder, settings.quality_file, file_name(scheme, activation_parts(scheme, ranks)))
    check_weights(folder)
    check_tokenizer(folder)
    return folder
