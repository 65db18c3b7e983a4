"""Real clients, unmodified. `tests/gateway/clients` has request bodies of more clients.

The scripts in `python/` name their packages (PEP 723), the packages of the scripts in `node/` are in its
`package.json`. `make clients` installs them and runs this test. A client that is not installed is skipped.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.serving import servers

HERE = Path(__file__).parent
SCRIPTS = sorted((HERE / "python").glob("*_client.py"))
NODE_SCRIPTS = sorted(path for path in (HERE / "node").glob("*.mjs") if path.stem != "parts")
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
    check([UV, "run", "-q", "--offline", script], environment)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("node") is None, reason="node runs these clients; `apt-get install nodejs npm` installs it"
)
@pytest.mark.skipif(not (HERE / "node" / "node_modules").is_dir(), reason="`make clients` installs node's clients")
@pytest.mark.parametrize("script", NODE_SCRIPTS, ids=lambda script: script.stem)
def test_every_part_of_a_client_of_node_works(environment: dict[str, str], script: Path) -> None:
    check(["node", script], environment)


def check(command: list[str | Path], environment: dict[str, str]) -> None:
    """Runs a script. All of its parts must work."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr[-2000:]
    errors = json.loads(done.stdout.splitlines()[-1])["errors"]
    assert errors
    assert not {name: error for name, error in errors.items() if error is not None}
