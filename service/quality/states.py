"""The states of a cell while its block is decoded: names and colours, `states.json`.

The pictures (`film.py`) and the playground, which reads the file itself, show the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("states.json")


@dataclass(frozen=True, slots=True)
class State:
    """A state of a cell. `light`, `dark`: its colour on white and on black."""

    label: str
    light: str
    dark: str


STATES: Mapping[str, State] = {name: State(**state) for name, state in json.loads(FILE.read_text("utf-8")).items()}
