"""What a machine with a lent GPU has: torch, Triton, transformers and little else. The engine must run there.

A child process runs the code. Imports are refused by their importer: code of this repository may name a few packages,
and packages may name what they want.
"""

import subprocess
import sys
from pathlib import Path

from tests.sources import ROOT

#: msgspec is the one wheel that must be brought (CONTRIBUTING.md)
PACKAGES = ("torch", "triton", "transformers", "tokenizers", "safetensors", "numpy", "jinja2", "msgspec", "pytest")
FOLDERS = (
    "service/decode", "service/demo", "service/engine", "service/model", "service/text", "training",
    "benchmarks/gpu",
)  # fmt: skip
#: module -> why it needs more
OTHERS = {
    "benchmarks.gpu.service": "it starts the whole service",
    "training.rl": "it asks a server over HTTP",
    "training.cli": "options",
    "training.workers": "Ray starts it",
    "training.deployment": "Ray starts it",
    "training.online_loop": "it runs beside a service",
}

CHILD = """
import builtins, importlib, sys
packages, modules = (text.split(",") for text in sys.argv[1:])
ours = ("service", "training", "benchmarks", "loadtest", "dev", "tests")
allowed, usual = {*packages, *ours, *sys.stdlib_module_names}, builtins.__import__

def guarded(name, names=None, local=None, fromlist=(), level=0):
    importer = (names or {}).get("__name__", "")
    if level == 0 and importer.split(".")[0] in ours and name.split(".")[0] not in allowed:
        raise ModuleNotFoundError(f"{importer} imports {name}")
    return usual(name, names, local, fromlist, level)

builtins.__import__ = guarded
refused = []
for module in modules:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        refused.append(str(error))
print(*sorted(set(refused)), sep="\\n", end="")
if not refused:
    from service.decode.modes import Speculative
    from service.demo import CHECKPOINT
    from service.engine import Engine, GenerationRequest
    from service.model import load_checkpoint
    from service.text import TextCodec
    prompt = tuple(TextCodec.load(CHECKPOINT).encode_message("What is 12 plus 5?"))
    request = GenerationRequest("0", prompt, Speculative(mrp_steps=2), max_new_tokens=8)
    Engine(load_checkpoint(CHECKPOINT)).generate([request])
"""


def _modules() -> list[str]:
    files = [path.relative_to(ROOT) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    files.append(Path("tests/engine/test_gpu.py"))
    names = (".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files)
    return [name for name in names if name not in OTHERS]


def _refused(packages: tuple[str, ...], modules: list[str]) -> list[str]:
    """The imports that a machine with `packages` alone refuses."""
    command = [sys.executable, "-c", CHILD, ",".join(packages), ",".join(modules)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_the_engine_training_and_stages_of_a_gpu_need_few_packages() -> None:
    assert _refused(PACKAGES, _modules()) == []
