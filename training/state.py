"""The folder of a training run: the saved state, and the log of the losses.

A state is written atomically. A run that is killed loses only the updates since the last state.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from service.errors import SettingsError
from training.differences import differences
from training.trainer import Report

STATE, LOG = "state.pt", "losses.jsonl"


class RunFolder:
    """The folder of one run. `plan`: the JSON object of all values on which the updates depend."""

    def __init__(self, path: Path, plan: Mapping[str, Any]) -> None:
        self._path, self._plan = path, json.loads(json.dumps(plan))
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"out is {path.parent}, which cannot be a folder: {error.strerror}") from error

    def load(self, device: str) -> dict[str, Any] | None:
        """The last state, None if there is none. SettingsError if it has another configuration."""
        file = self._path / STATE
        if not file.is_file():
            return None
        # The file may hold only tensors and plain values, so no code in it is executed.
        state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
        if differ := differences(json.loads(state["plan"]), self._plan):
            raise SettingsError(
                f"{self._path} holds a training with other options: {'; '.join(differ)}."
                " Choose another folder, or give the earlier options"
            )
        return state

    def save(self, state: Mapping[str, Any]) -> None:
        """Replaces the state."""
        new = self._path / f"{STATE}.new"
        with new.open("wb") as file:
            torch.save({**state, "plan": json.dumps(self._plan)}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path / STATE)

    def log(self, report: Report) -> None:
        """Adds a line to the log of the losses."""
        with (self._path / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(report)) + "\n")

    def forget_after(self, step: int) -> None:
        """Removes the updates after a step from the log, since they will be made again."""
        file = self._path / LOG
        if file.is_file():
            whole = (line for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n"))
            lines = [line for line in whole if json.loads(line)["step"] <= step]
            new = file.with_suffix(".new")
            new.write_text("".join(lines), encoding="utf-8")
            new.replace(file)


def latest(folder: Path) -> Report | None:
    """The report in the last complete line of a run's log. Another process may be writing the log."""
    file = folder / LOG
    if not file.is_file():
        return None
    whole = [line for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    return Report(**json.loads(whole[-1])) if whole else None
