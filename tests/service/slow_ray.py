"""`python -m tests.service.slow_ray FOLDER serve …`: `mrp-serve`, but the raylet starts 35 s late, its agents 20 s.

Both are more than Ray itself waits for.
"""

import sys
from pathlib import Path

from ray._private import services

from service.cli.main import main

_RAYLET_S, _AGENTS_S = 35, 20


def late(program: Path, command: str, seconds: float) -> str:
    """A program that begins later, under its own name."""
    program.write_text(f'#!/bin/bash\nsleep {seconds}\nexec {command} "$@"\n')
    program.chmod(0o700)
    return str(program)


if __name__ == "__main__":
    folder = Path(sys.argv.pop(1))
    services.RAYLET_EXECUTABLE = late(folder / "raylet", services.RAYLET_EXECUTABLE, _RAYLET_S)
    agent = late(folder / "agent", sys.executable, _AGENTS_S)
    services._build_python_executable_command_memory_profileable = lambda *_: [agent, "-u"]
    main()
