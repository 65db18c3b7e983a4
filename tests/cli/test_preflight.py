"""`mrp-serve serve` refuses errors before it starts anything, and at once: one line, exit status 1, no Ray."""

import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import ray

from service.cli import cluster, preflight
from service.demo import CHECKPOINT
from service.errors import SettingsError
from service.gateway.http.sockets import bind
from service.settings.settings import Settings
from tests.service.running import free_port
from tests.tiny import GOLDEN

ROOT = Path(__file__).resolve().parents[2]

Run = Callable[..., int]


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(settings: Settings, _: object) -> None:
        pytest.fail("Ray was to be started")

    monkeypatch.setattr(cluster, "begin", begin)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint to be spoilt."""
    return Path(shutil.copytree(GOLDEN / "sdar-mrp-random-a", tmp_path / "checkpoint"))


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    [line] = capsys.readouterr().err.splitlines()
    return str(line)


def test_cuda_where_there_is_none(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run("serve", "--device", "cuda") == 1
    assert error_line(capsys) == "mrp-serve: device is 'cuda', but torch sees no CUDA device here"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.safetensors", None, "{folder}: model.safetensors is missing (only safetensors are read)"),
        ("model.safetensors", "cut off", "{folder}/model.safetensors is not a readable safetensors file"),
        ("tokenizer.json", "junk", "{folder}: the tokenizer cannot be loaded: "),
    ],
)
def test_a_checkpoint_that_is_not_whole(run: Run, folder: Path, capsys, file, content, message) -> None:
    (folder / file).unlink()
    if content:
        (folder / file).write_text(content, "utf-8")
    assert run("serve", "--model", folder) == 1
    assert message.format(folder=folder) in error_line(capsys)


def test_a_port_that_is_taken(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert run("serve", "--port", port) == 1
    assert error_line(capsys) == f"mrp-serve: cannot listen on 127.0.0.1:{port}: Address already in use"


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "::1", "::"])
def test_any_address_of_this_machine_is_let_through(host: str) -> None:
    port = free_port()
    assert preflight.check(Settings(host=host, port=port)).host == host
    bind(host, port).close()


def test_a_full_disk(run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    full = SimpleNamespace(f_bavail=100, f_frsize=4096)
    monkeypatch.setattr("os.statvfs", lambda _: full)
    assert run("serve") == 1
    assert error_line(capsys).endswith(
        "is full (0 MiB are free), and Ray keeps its logs and sockets there: set RAY_TMPDIR to another folder"
    )


@pytest.mark.parametrize(("files", "warns"), [(128, True), (1023, True), (1024, False), (-1, False)])
def test_few_open_files_are_a_warning(monkeypatch: pytest.MonkeyPatch, files: int, warns: bool) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert [f"may have {files} open files (`ulimit -n`), so" in warning for warning in preflight.warnings()] == (
        [True] if warns else []
    )


@pytest.mark.parametrize(
    ("resources", "device", "words"),
    [
        ({"CPU": 2.0}, "cpu", "every replica needs a CPU, but Ray finds 2 on"),
        ({"CPU": 8.0}, "cuda", "every replica needs a GPU, but Ray finds 0 on"),
        ({"CPU": 8.0, "GPU": 2.0}, "cuda", "every replica needs a GPU, but Ray finds 2 on"),
    ],
)
def test_more_replicas_than_the_machine_has_room_for(
    monkeypatch: pytest.MonkeyPatch, resources: dict[str, float], device: str, words: str
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: resources)
    with pytest.raises(SettingsError, match=f"num_replicas is 3 and {words}"):
        preflight.check_room(Settings(num_replicas=3, device=device))
    monkeypatch.setattr(ray, "cluster_resources", lambda: resources | {"GPU": 1.0})
    preflight.check_room(Settings(num_replicas=1, device=device))


@pytest.mark.parametrize(
    ("resources", "device", "words"),
    [
        ({"CPU": 2.0}, "auto", "cpu (no GPU seen)"),
        ({"CPU": 2.0, "GPU": 1.0, "accelerator_type:L40S": 1.0}, "cpu", "cpu"),
        ({"CPU": 2.0, "GPU": 1.0, "accelerator_type:L40S": 1.0}, "auto", "cuda: L40S"),
        ({"CPU": 2.0, "GPU": 1.0}, "cuda", "cuda: unknown type"),
    ],
)
def test_the_start_names_the_device(
    monkeypatch: pytest.MonkeyPatch, resources: dict[str, float], device: str, words: str
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: resources)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    assert preflight.device(Settings(device=device)) == words


def test_the_checks_do_not_import_torch() -> None:
    """Importing torch takes longer than all checks, and a program that starts Ray does not need torch."""
    program = (
        "import sys; from service.cli import preflight; from service.settings.settings import Settings; "
        f"preflight.check(Settings(port={free_port()})); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_hub_model_is_pinned_to_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So replicas that start later load the same weights, and answers keep the model's name."""
    folder = tmp_path / "models--owner--model" / "snapshots" / "0123abc"
    shutil.copytree(CHECKPOINT, folder)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
    settings = preflight.check(Settings(model="owner/model@main", port=free_port()))
    assert settings.model == "owner/model@0123abc"
    assert settings.model_name == "model"
