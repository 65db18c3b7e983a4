"""What other users may not have: Ray's token, the folder of a run, files with keys."""

import os
import stat
from pathlib import Path

import pytest

from service.cli import private
from service.errors import SettingsError
from service.settings.settings import Settings


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


def of_mode(file: Path, mode: int) -> Path:
    file.touch()
    file.chmod(mode)
    return file


def test_each_service_has_a_token_of_its_own() -> None:
    first, second = private.token(), private.token()
    assert first.keys() == {"RAY_AUTH_TOKEN"}
    assert len(first["RAY_AUTH_TOKEN"]) == 64
    assert first != second


def test_the_users_own_token_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(of_mode(tmp_path / "token", 0o600)))
    assert private.token() == {}
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    assert private.token() == {}


def test_a_token_that_others_may_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file := of_mode(tmp_path / "token", 0o640)))
    with pytest.raises(SettingsError, match=rf"mode 0640.*`chmod 600 {file}`"):
        private.token()
    file.unlink()
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        private.token()


def test_a_ray_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(SettingsError, match=r"RAY_AUTH_MODE is 'disabled'.*unset RAY_AUTH_MODE"):
        private.token()


def test_files_with_keys(tmp_path: Path) -> None:
    file = of_mode(tmp_path / "keys.yaml", 0o600)
    settings = Settings(api_keys_file=file)
    assert private.check_files(settings) == []
    file.chmod(0o644)
    assert private.check_files(settings) == [f"others may read {file} (api_keys_file); `chmod 600 {file}`"]
    file.chmod(0o666)
    with pytest.raises(SettingsError, match=f"everybody may write {file}"):
        private.check_files(settings)


def test_a_config_without_keys_may_be_read(tmp_path: Path) -> None:
    file = of_mode(tmp_path / "config.yaml", 0o644)
    file.write_text("port: 8001")
    assert private.check_files(Settings(config=file)) == []
    file.write_text("api_keys: secret")
    assert private.check_files(Settings(config=file)) != []


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the user's folder of runs is made. The test's own path is too long for Ray."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(private, "_SOCKET_PATH", 1000)
    return tmp_path


def test_a_runs_folder_is_its_users_alone(base: Path) -> None:
    run = private.make_run_folder()
    assert run.parent == base / f"mrp-{os.geteuid()}"
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (run, run.parent)} == {0o700}


def test_folders_of_earlier_runs_are_removed_but_the_newest(base: Path) -> None:
    above = private.make_run_folder().parent
    running = private.make_run_folder()
    for number, name in enumerate(("first", "second", "third")):
        (above / name / "ray").mkdir(parents=True)
        os.utime(above / name, (number, number))
    os.utime(running, (9, 9))
    new = private.make_run_folder()
    assert {folder.name for folder in above.iterdir()} >= {"third", running.name, new.name}
    assert not (above / "first").exists()
    assert not (above / "second").exists()


def test_a_folder_of_others_is_not_used(base: Path) -> None:
    above = base / f"mrp-{os.geteuid()}"
    above.mkdir()
    above.chmod(0o755)
    with pytest.raises(SettingsError, match=f"mode 0755.*`chmod 700 {above}`"):
        private.make_run_folder()
    above.rmdir()
    above.symlink_to(base)
    first, second = private.make_run_folder(), private.make_run_folder()
    assert first.parent == second.parent
    assert first.parent.parent == base
    assert first.parent.name.startswith(f"mrp-{os.geteuid()}-")
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700


def test_a_name_that_another_user_has_taken(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base / "mrp-4711").mkdir()
    (base / "mrp-4711-x").mkdir()
    monkeypatch.setattr(private.os, "geteuid", lambda: 4711)
    path = Path(private._private_folder(base))
    assert path not in {base / "mrp-4711", base / "mrp-4711-x"}
    assert path.parent == base
    assert path.name.startswith("mrp-4711-")


def test_a_path_that_is_too_long_for_sockets(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_SOCKET_PATH", 107)
    monkeypatch.setenv("RAY_TMPDIR", str(long := base / ("x" * 60)))
    long.mkdir()
    with pytest.raises(SettingsError, match="set RAY_TMPDIR to a shorter folder"):
        private.make_run_folder()
    assert not list(long.glob("mrp-*/*"))
