"""The checkpoint shipped with the package, its held-out problems and their checker. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from service.demo.checker import check
from service.demo.problems import Problem, heldout_problems, is_heldout

#: Folder of the demo checkpoint, in the published layout.
CHECKPOINT = Path(__file__).parent

__all__ = ["CHECKPOINT", "Problem", "check", "heldout_problems", "is_heldout"]
