"""An engine's process does not load torch's compiler, whose import takes longer than the rest of torch."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys
from service.decode.modes import Speculative
from service.engine import Engine, GenerationRequest, SamplingParams
from service.model import load_checkpoint
engine = Engine(load_checkpoint("tests/golden/sdar-mrp-random-a"))
engine.prepare()
requests = [
    GenerationRequest(str(temperature), (1, 2, 3), Speculative(2), SamplingParams(temperature), 8)
    for temperature in (0.0, 0.7)
]
experts = Engine(load_checkpoint("tests/golden/sdar-moe-random-b"))
experts.generate([GenerationRequest("experts", (1, 2, 3), Speculative(0, 2), max_new_tokens=8)])
print(len(engine.generate(requests)), "torch._dynamo" in sys.modules)
"""


def test_loading_and_decoding_import_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]
