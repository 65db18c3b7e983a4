"""What a measurement ran on, in words that may stand beside its numbers."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_CPUINFO = Path("/proc/cpuinfo")


def machine_name(device: torch.device) -> str:
    """Such as "NVIDIA H200", or "AMD EPYC, 2 cores, 1 thread, torch 2.9.0"."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    lines = _CPUINFO.read_text().splitlines() if _CPUINFO.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    threads = torch.get_num_threads()
    return (
        f"{models[0] if models else 'CPU'}, {os.cpu_count()} cores, {threads} thread{'s' * (threads > 1)}, "
        f"torch {torch.__version__}"
    )
