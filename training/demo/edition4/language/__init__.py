"""The tasks of the demo's fourth edition, which is being trained: their language and their checker. Imports no torch.

Parts of an answer may stand before what decides them: an outcome before its sum, a verdict before the numbers, a
function's name before its body, a plan before its lines. So reading from left to right guesses, too.
"""

from __future__ import annotations

from training.demo.edition4.language.checker import check

__all__ = ["check"]
