"""The folder of a training run: a state to go on from, and the log of the losses.

A state is written whole or not at all, so a run that is killed loses the updates since the last one and no more. Knows
no model.
"""

from __future__ import annotations

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
    """One run's folder. `plan`: what its updates depend on, as JSON has it."""

    def __init__(self, path: Path, plan: Mapping[str, Any]) -> None:
        self._path, self._plan = path, json.loads(json.dumps(plan))
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"out is {path.parent}, which cannot be a folder: {error.strerror}") from error

    def load(self, device: str) -> dict[str, Any] | None:
        """The last state, None if there is none. SettingsError if it is that of another plan."""
        file = self._path / STATE
        if not file.is_file():
            return None
        # Tensors and plain values only: nothing in the file is executed.
        state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
        if differ := differences(json.loads(state["plan"]), self._plan):
            raise SettingsError(
                f"{self._path} holds a training with other options: {'; '.join(differ)}."
                " Name another folder, or give the options of before"
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
        """Takes the updates behind a step out of the log: they will be done again."""
        file = self._path / LOG
        if file.is_file():
            whole = (line for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n"))
            kept = [line for line in whole if json.loads(line)["step"] <= step]
            new = file.with_suffix(".new")
            new.write_text("".join(kept), encoding="utf-8")
            new.replace(file)


def latest(folder: Path) -> Report | None:
    """The last whole line of a run's log, while another process may be writing it."""
    file = folder / LOG
    if not file.is_file():
        return None
    whole = [line for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    return Report(**json.loads(whole[-1])) if whole else None
