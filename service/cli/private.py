"""Permissions against other users of the machine: Ray's token, the folder of its sockets and logs, files with keys."""

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from service.errors import SettingsError
from service.settings.settings import Settings

#: Bytes of the longest path of a Unix socket, and bytes that Ray adds to its folder: the names of session and socket.
_SOCKET_PATH, _RAYS_PART = 107, len("/ray/session_2026-11-24_17-36-26_123456_4194304/sockets/plasma_store.1")
_OTHERS, _OTHERS_WRITE = stat.S_IRWXG | stat.S_IRWXO, stat.S_IWOTH


def token() -> dict[str, str]:
    """The variable of a new token for Ray, empty if the user has one. SettingsError if others could have it."""
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    if mode.lower() != "token":
        raise SettingsError(
            f"RAY_AUTH_MODE is {mode!r}, with which other users of this machine could run code as you; "
            "allowed is token: unset RAY_AUTH_MODE"
        )
    if os.environ.get("RAY_AUTH_TOKEN"):
        return {}
    if not (file := os.environ.get("RAY_AUTH_TOKEN_PATH")):
        return {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        permissions = Path(file).stat().st_mode
    except OSError as error:
        raise SettingsError(f"RAY_AUTH_TOKEN_PATH is {file}, which cannot be read: {error.strerror}") from error
    if permissions & _OTHERS:
        raise SettingsError(
            f"RAY_AUTH_TOKEN_PATH is {file}, which others may read (mode {stat.S_IMODE(permissions):04o}), and whoever "
            f"has the token can run code as you; `chmod 600 {file}`"
        )
    return {}


def check_files(settings: Settings) -> list[str]:
    """Warnings about files with keys that others may read. SettingsError for one that others may write."""
    warnings = []
    for name in ("api_keys_file", "config"):
        file = getattr(settings, name)
        mode = file.stat().st_mode if file is not None and file.exists() else 0
        if mode & _OTHERS_WRITE:
            raise SettingsError(f"everybody may write {file} ({name}) and so add keys; `chmod 600 {file}`", param=name)
        if mode & stat.S_IROTH and (name == "api_keys_file" or settings.api_keys or settings.admin_keys):
            warnings.append(f"others may read {file} ({name}); `chmod 600 {file}`")
    return warnings


def base() -> Path:
    """The folder in which the folders of all users are."""
    return Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())


def make_run_folder() -> Path:
    """A new folder of one run, inside the user's folder of all runs. Other users can enter neither.

    This process and its forks lock the folder until the last of them has ended. A later run removes all ended ones but
    the newest.
    """
    above = _private_folder(base())
    with _locked(above):
        ended = []
        for earlier in above.iterdir():
            with suppress(OSError), _locked(earlier, fcntl.LOCK_NB):
                ended.append(earlier)
        for earlier in sorted(ended, key=lambda run: run.stat().st_mtime)[:-1]:
            shutil.rmtree(earlier, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(dir=above))
        fcntl.flock(_open(folder), fcntl.LOCK_EX)
    if len(bytes(folder)) + _RAYS_PART > _SOCKET_PATH:
        folder.rmdir()
        raise SettingsError(
            f"{folder} is too long for the paths of Ray's sockets ({_SOCKET_PATH} bytes); "
            "set RAY_TMPDIR to a shorter folder, such as /tmp"
        )
    return folder


@contextmanager
def _locked(folder: Path, how: int = 0) -> Iterator[None]:
    """Locks a folder. BlockingIOError with LOCK_NB if other processes have locked it."""
    descriptor = _open(folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(descriptor)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _private_folder(above: Path) -> Path:
    """The user's folder of all runs: `mrp-UID`. If that is another user's, one with a random end, of now or before.

    SettingsError if the folder is open to others.
    """
    name = f"mrp-{os.geteuid()}"
    with suppress(FileExistsError):
        (above / name).mkdir(mode=0o700)
    for folder in (above / name, *sorted(above.glob(f"{name}-*"))):
        seen = folder.lstat()
        if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid():
            if mode := seen.st_mode & _OTHERS:
                raise SettingsError(f"{folder} is open to others (mode {0o700 | mode:04o}): `chmod 700 {folder}`")
            return folder
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=above))
