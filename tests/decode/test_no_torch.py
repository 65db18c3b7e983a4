"""`service.decode` is pure Python: it must stay importable, and usable, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys
from tests.predictions import prediction_of
from service.decode.block import MASKED, Block, Pick
from service.decode.canvas import Canvas
from service.decode.modes import MODES
canvas = Canvas(Block((MASKED,)))
policy = MODES["static"]().decode(canvas)
next(policy)
try:
    policy.send((prediction_of((Pick(0, 5, 1.0),)),))
except StopIteration:
    print(canvas.block.tokens, sorted({"torch", "numpy", "ray", "fastapi"} & set(sys.modules)))
"""


def test_decode_runs_without_loading_torch() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(5,) []"
