"""Real clients, unmodified. `tests/gateway/clients` has request bodies of more clients.

The scripts in `python/` name their packages (PEP 723). Before the test, install them from the package index:
`for script in tests/clients/python/*_client.py; do uv sync --script $script; done`.
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
    done = subprocess.run(
        [UV, "run", "-q", "--offline", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr[-2000:]
    errors = json.loads(done.stdout.splitlines()[-1])["errors"]
    assert errors
    assert not {name: error for name, error in errors.items() if error is not None}
