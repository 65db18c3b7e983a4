"""Real clients, unmodified. `tests/gateway/clients` has request bodies of more clients.

The scripts in `python/` name their packages (PEP 723). Before the test, install them from the package index:
`for script in tests/clients/python/*_client.py; do uv sync --script $script; done`, and `npm install` in `node/`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.serving import servers

SCRIPTS = sorted((Path(__file__).parent / "python").glob("*_client.py"))
NODE = Path(__file__).parent / "node"
UV = shutil.which("uv")


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with servers() as addresses:
        yield os.environ | addresses


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(UV is None, reason="uv makes the clients' environments; `pip install uv` installs it")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_part_of_a_client_works(environment: dict[str, str], script: Path) -> None:
    if subprocess.run([UV, "sync", "-q", "--offline", "--script", script], check=False).returncode:
        pytest.skip(f"the packages of {script.name} are not installed; `uv sync --script {script}` installs them")
    check_parts([UV, "run", "-q", "--offline", script], environment)


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("node") and (NODE / "node_modules").is_dir()), reason="`npm install` in tests/clients/node"
)
def test_clients_of_node_work(environment: dict[str, str]) -> None:
    check_parts(["node", NODE / "clients.mjs"], environment)


def check_parts(command: list[object], environment: dict[str, str]) -> None:
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr[-2000:]
    errors = json.loads(done.stdout.splitlines()[-1])["errors"]
    assert errors
    assert not {name: error for name, error in errors.items() if error is not None}
