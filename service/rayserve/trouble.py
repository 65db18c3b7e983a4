"""Troubles of this machine that Ray does not name: a full disk, and workers that end before a replica exists.

`mrp-serve serve` names the folder of Ray's logs by RAY_TMPDIR. Without it only the disk is looked at.
"""

import os
import re
import tempfile
import time
from pathlib import Path

#: free bytes below which Ray's processes cannot be expected to start
MIN_FREE = 64 * 2**20
#: bytes at the end of a worker's file that are read, its age in seconds at most, and characters that are shown
_READ, _RECENT_S, _SHOWN = 4096, 120.0, 200
_ERROR = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)(?:: .*)?)$", re.MULTILINE)


def trouble() -> str:
    """The trouble that keeps replicas from starting. Empty if none is known."""
    folder = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())
    return full_disk(folder) or last_error(folder / "ray" / "session_latest" / "logs")


def full_disk(folder: Path) -> str:
    """That the disk of a folder is full. Empty if it is not."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return ""
    free = disk.f_bavail * disk.f_frsize
    return f"the disk of {folder} is full ({free / 2**20:.0f} MiB are free)" if free < MIN_FREE else ""


def last_error(logs: Path) -> str:
    """The last exception in the newest file of a worker that ended. Empty if there is none of the last minutes."""
    files = [(file.stat().st_mtime, file) for file in logs.glob("worker-*.err") if file.stat().st_size]
    written, newest = max(files, default=(0.0, logs))
    if time.time() - written > _RECENT_S:
        return ""
    with newest.open("rb") as file:
        file.seek(-min(_READ, newest.stat().st_size), os.SEEK_END)
        errors = _ERROR.findall(file.read().decode("utf-8", "replace"))
    return f"a worker ended with {errors[-1][:_SHOWN]}" if errors else ""
