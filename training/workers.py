"""Trains with several workers by Ray Train. The updates equal the updates of one worker.

Every worker has the whole backbone and a part of each update's batches. The workers exchange only MRP's gradients. If
a worker dies, all workers start again from the last state.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.errors import MrpServeError, SettingsError

if TYPE_CHECKING:
    from training.config import TrainingConfig

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_worker_niceness": "0",  # Ray's default gives workers the lowest priority on the machine
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_METRICS_ENABLED": "0",
}
#: restarts of a training after a worker died
_RESTARTS = 3
#: file with the error of a worker, for the program that started the training
REFUSAL = Path("training", "refused.txt")


def train_together(plan: TrainingConfig, device: str, workers: int, threads: int | None) -> None:
    """Trains with `workers` workers, on the Ray cluster that RAY_ADDRESS names or on this machine.

    SettingsError if Ray Train is not installed, or if a worker fails; it then has the worker's error.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
        from ray.train.torch import TorchTrainer
    except ImportError as error:
        raise SettingsError("--workers needs Ray Train: pip install '.[train]'") from error

    gpu = device.startswith("cuda")
    _start_ray(workers)
    trainer = TorchTrainer(
        work,
        train_loop_config={"plan": plan, "threads": threads},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu),
        run_config=RunConfig(
            name="ray",
            storage_path=str(plan.keeping.out / "training"),
            failure_config=FailureConfig(max_failures=_RESTARTS),
        ),
    )
    refusal = plan.keeping.out / REFUSAL
    refusal.unlink(missing_ok=True)
    try:
        trainer.fit()
    except TrainingFailedError as error:
        raise SettingsError(f"the training failed {_RESTARTS + 1} times, at last: {_last_line(error)}") from error
    finally:
        import ray

        ray.shutdown()
    if refusal.is_file():
        raise SettingsError(refusal.read_text(encoding="utf-8"))


def _start_ray(workers: int) -> None:
    """Connects to the cluster, or starts Ray here. Ray Train's own actors log at length that there is no dashboard."""
    if os.environ.get("RAY_ADDRESS"):
        import ray

        ray.init(log_to_driver=False, logging_level=logging.ERROR)
        return
    from service.cli.ray_start import start_ray

    start_ray(max(workers + 1, os.cpu_count() or 1))


def work(config: dict[str, Any]) -> None:
    """Runs one worker."""
    import ray.train
    import ray.train.torch

    from service.cli.options import use_threads
    from training.chat_codec import ChatCodec
    from training.session import Watcher, train
    from training.trainer import Team

    plan: TrainingConfig = config["plan"]
    context, device = ray.train.get_context(), ray.train.torch.get_device()
    team = Team(context.get_world_rank(), context.get_world_size())
    use_threads(config["threads"])
    try:
        train(plan, ChatCodec.load, str(device), team, Watcher())
    except MrpServeError as error:  # not raised to Ray, since another try would fail in the same way
        refusal = plan.keeping.out / REFUSAL
        refusal.parent.mkdir(parents=True, exist_ok=True)
        refusal.write_text(error.message, encoding="utf-8")


def _last_line(error: BaseException) -> str:
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
