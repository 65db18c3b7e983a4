"""The sandbox: code that attacks what is outside fails, and limits end it. Each attack succeeds without the sandbox."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.paper import sandbox
from benchmarks.paper.sandbox import Limits, run
from service.errors import SettingsError


@pytest.fixture(autouse=True)
def can_sandbox():
    try:
        assert run("print(6 * 7)") == "42\n"
    except SettingsError as error:
        pytest.skip(error.message)


def outside(program):
    """The output of a program without the sandbox."""
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


class TestAttacks:
    def test_code_reaches_no_network(self):
        """Not even a server on the machine itself."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.2)
            attack = f"""
import socket
try:
    socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), 5)
    print("reached")
except OSError as error:
    print(type(error).__name__)
"""
            assert run(attack) == "PermissionError\n"
            with pytest.raises(TimeoutError):
                server.accept()
            assert outside(attack) == "reached\n"

    def test_code_writes_no_file(self, tmp_path):
        file = tmp_path / "victim"
        file.write_text("whole")
        folders = (tmp_path, Path(__file__).parent, Path("/dev/shm"), Path.home())
        attack = f"""
import os, shutil
open("/tmp/own", "w").write("its own folder in memory")
for folder in {[str(folder) for folder in folders]}:
    try:
        open(os.path.join(folder, "attack"), "w")
        print("wrote", folder)
    except OSError:
        pass
try:
    os.unlink({str(file)!r})
except OSError as error:
    print(type(error).__name__)
"""
        # With the sandbox's own /tmp, pytest's folder under it is not even visible.
        assert run(attack) in {"OSError\n", "FileNotFoundError\n"}
        assert file.read_text() == "whole"
        assert not any((folder / "attack").exists() for folder in folders)
        assert not Path("/tmp/own").exists()

    def test_code_starts_and_ends_no_process(self):
        victim = subprocess.Popen(["sleep", "60"])
        attack = f"""
import ctypes, os, signal, subprocess
attempts = {{
    "fork": os.fork,
    "run": lambda: subprocess.run(["true"]),
    "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {{}}),
    "kill": lambda: os.kill({victim.pid}, signal.SIGKILL),
}}
for name, attempt in attempts.items():
    try:
        attempt()
        print(name)
    except OSError as error:
        print(name, type(error).__name__)
print(os.listdir("/proc"), os.getpid())
libc = ctypes.CDLL(None)
print(libc.mount(b"none", b"/", b"", ctypes.c_ulong(32 | 4096), None), libc.unshare(0x10000000))
"""
        try:
            refused = "fork PermissionError\nrun PermissionError\nspawn PermissionError\nkill ProcessLookupError\n"
            assert run(attack) == f"{refused}[] 1\n-1 -1\n"
            assert victim.poll() is None
        finally:
            victim.kill()
            victim.wait()

    def test_code_sees_no_environment(self, monkeypatch):
        monkeypatch.setenv("MRP_SECRET", "key")
        assert run("import os; print(os.environ.get('MRP_SECRET'))") == "None\n"
        assert os.environ["MRP_SECRET"] == "key"


class TestLimits:
    def test_a_loop_ends(self):
        assert run("while True: pass", limits=Limits(seconds=0.5)) is None

    def test_waiting_ends(self, monkeypatch):
        monkeypatch.setattr(sandbox, "_START_S", 1.0)
        began = time.monotonic()
        assert run("import time; time.sleep(60)", limits=Limits(seconds=0.5)) is None
        assert time.monotonic() - began < 30

    @pytest.mark.parametrize(
        "program",
        ["bytearray(2**31)", "open('/tmp/x', 'wb').write(bytes(2**25))", "print('x' * 2**25)", "1 / 0"],
        ids=["memory", "a file", "output", "an error"],
    )
    def test_too_much_is_an_error(self, program):
        assert run(f"{program}\nprint('went on')") is None

    def test_without_namespaces_nothing_runs(self, monkeypatch, tmp_path):
        refusing = tmp_path / "unshare"
        refusing.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
        refusing.chmod(0o755)
        monkeypatch.setattr("shutil.which", lambda _: str(refusing))
        with pytest.raises(SettingsError, match="this machine cannot make the sandbox: unshare: unshare failed"):
            run("print(1)")
        monkeypatch.setattr("shutil.which", lambda _: None)
        with pytest.raises(SettingsError, match="the sandbox needs the program `unshare`"):
            run("print(1)")
