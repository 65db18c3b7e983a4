"""The first program of a sandbox's process. `sandbox.py` starts it in new namespaces. It needs only Python's library.

It gives up what it could do, and becomes the program that it was handed.
"""

import ctypes
import os
import resource
import struct
import sys

_LIBC = ctypes.CDLL(None, use_errno=True)
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _READ_ONLY = 442, -100, 0x8000, 1
_NOSUID_NODEV, _BIND = ctypes.c_ulong(0x2 | 0x4), ctypes.c_ulong(0x1000 | 0x4000)
_CAPBSET_DROP, _NO_NEW_PRIVS, _SECCOMP = 24, 38, 22

#: by machine: the number of the architecture, of `clone`, and of the calls that are refused: fork, vfork, socket,
#: unshare, setns, io_uring_setup
_CALLS = {
    "x86_64": (0xC000003E, 56, (57, 58, 41, 272, 308, 425)),
    "aarch64": (0xC00000B7, 220, (198, 97, 268, 425)),
}
#: `clone3` hides its flags from filters, so it is missing as on older kernels, and libraries use `clone`
_CLONE3, _CLONE_THREAD = 435, 0x10000
_LOAD, _EQUAL, _HAS, _GIVE = 0x20, 0x15, 0x45, 0x06
_ALLOW, _KILL, _NOT_PERMITTED, _MISSING = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


def enter(program: str, limits: list[str], paths: list[str]) -> None:
    """Gives up all rights and becomes the program. `limits`: seconds, bytes of memory and of a file, open files."""
    try:
        _hide_files(int(limits[2]), [sys.prefix, sys.base_prefix, *paths])
        _limit(int(float(limits[0])) + 1, *map(int, limits[1:]))
        _drop_capabilities()
        _filter_calls()
    except (OSError, KeyError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    os.write(2, b"ready")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    start = f"import sys; sys.path[:] = {paths!r}\n"
    os.execve(sys.executable, [sys.executable, "-I", "-c", start + program], {"PATH": os.defpath})  # noqa: S606


def _hide_files(size: int, libraries: list[str]) -> None:
    """Makes all mounts read-only, without `/proc`. `/tmp` is an empty folder in memory of `size` bytes.

    `libraries`: the folders of Python and its packages. They stay readable where they lie under `/tmp`.
    """
    attributes = struct.pack("QQQQ", _READ_ONLY, 0, 0, 0)
    length = ctypes.c_size_t(len(attributes))
    _checked(_LIBC.syscall(_MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, attributes, length))
    hidden = {path: os.open(path, os.O_PATH) for path in libraries if path.startswith("/tmp/") and os.path.isdir(path)}  # noqa: PTH112, S108
    _checked(_LIBC.mount(b"tmpfs", b"/tmp", b"tmpfs", _NOSUID_NODEV, f"size={size}".encode()))
    for path, descriptor in hidden.items():
        os.makedirs(path, exist_ok=True)  # noqa: PTH103
        _checked(_LIBC.mount(f"/proc/self/fd/{descriptor}".encode(), path.encode(), None, _BIND, None))
        _checked(_LIBC.syscall(_MOUNT_SETATTR, _AT_FDCWD, path.encode(), _AT_RECURSIVE, attributes, length))
        os.close(descriptor)
    _checked(_LIBC.mount(b"tmpfs", b"/proc", b"tmpfs", _NOSUID_NODEV, b"size=4k,mode=555"))
    os.chdir("/tmp")  # noqa: S108


def _limit(seconds: int, memory: int, file: int, open_files: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file, file))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _drop_capabilities() -> None:
    """Empties the set of capabilities that the next program may have."""
    capability = 0
    while _LIBC.prctl(_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    _checked(_LIBC.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))


def _filter_calls() -> None:
    """A filter of system calls: threads may start, processes and sockets are refused."""
    architecture, clone, refused = _CALLS[os.uname().machine]
    lines = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_GIVE, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    lines += [(_HAS, 0, 1, 0x40000000), (_GIVE, 0, 0, _KILL)]  # x86's other set of numbers
    lines += [(_EQUAL, 0, 1, _CLONE3), (_GIVE, 0, 0, _MISSING)]
    for call in refused:
        lines += [(_EQUAL, 0, 1, call), (_GIVE, 0, 0, _NOT_PERMITTED)]
    lines += [(_EQUAL, 0, 3, clone), (_LOAD, 0, 0, 16), (_HAS, 1, 0, _CLONE_THREAD), (_GIVE, 0, 0, _NOT_PERMITTED)]
    lines += [(_GIVE, 0, 0, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(code)))
    _checked(_LIBC.prctl(_SECCOMP, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0))


def _checked(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    enter(sys.argv[1], sys.argv[2:6], sys.argv[6:])
