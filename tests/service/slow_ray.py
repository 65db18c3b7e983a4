"""`python -m tests.service.slow_ray FOLDER serve …`: `mrp-serve`, but the raylet starts 35 s late, its agents 20 s.

Both are more than Ray itself waits for.
"""

import sys
from pathlib import Path

from service.cli import cluster
from service.cli.main import main

_RAYLET_S, _AGENTS_S = 35, 20
_start_ray = cluster.start_ray


def late(program: Path, command: str, seconds: float) -> str:
    """A program that begins later, under its own name."""
    program.write_text(f'#!/bin/bash\nsleep {seconds}\nexec {command} "$@"\n')
    program.chmod(0o700)
    return str(program)


def start_ray(num_cpus: int | None, talkative: bool = False) -> None:
    """What is changed imports Ray, which reads the environment that the program has made."""
    from ray._private import services

    services.RAYLET_EXECUTABLE = late(_FOLDER / "raylet", services.RAYLET_EXECUTABLE, _RAYLET_S)
    agent = late(_FOLDER / "agent", sys.executable, _AGENTS_S)
    services._build_python_executable_command_memory_profileable = lambda *_, **__: [agent, "-u"]
    _start_ray(num_cpus, talkative)


if __name__ == "__main__":
    _FOLDER = Path(sys.argv.pop(1))
    cluster.start_ray = start_ray
    main()
