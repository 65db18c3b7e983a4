"""Whether Triton's kernels run on a device. Attention, 8-bit products and sampling have one each."""

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from sysconfig import get_paths

import torch


def has_triton(device: torch.device) -> bool:
    """Whether Triton is installed, and the device is CUDA or Triton interprets its kernels."""
    return _is_installed() and (device.type == "cuda" or _interprets())


def triton_unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why Triton's kernels cannot run on a device with a type; None if they can."""
    if not _is_installed():
        return "the package triton is not installed here (pip install '.[gpu]')"
    if not has_triton(device):
        return f"its kernels need a CUDA device, not {device.type} (or TRITON_INTERPRET=1, which is slow)"
    if device.type == "cuda" and dtype == torch.float64:
        return "its kernels have no float64 on CUDA"
    return None if _interprets() else _compiler_problem()


@cache
def use_triton(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether to take a Triton kernel that torch's operations could replace: on CUDA, where Triton is available.

    Looks once: every 8-bit layer calls this in every forward.
    """
    return device.type == "cuda" and triton_unavailable(device, dtype) is None


def _is_installed() -> bool:
    return find_spec("triton") is not None


def _compiler_problem() -> str | None:
    """Triton compiles the code that launches a kernel. It needs a C compiler and Python's headers."""
    if not (os.environ.get("CC") or which("gcc") or which("clang")):
        return "Triton finds no C compiler here (gcc, clang or CC)"
    headers = Path(get_paths()["include"]) / "Python.h"
    return None if headers.is_file() else f"Triton needs Python's headers, and there is no {headers}"


def _interprets() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") not in {"", "0", "false", "off"}
