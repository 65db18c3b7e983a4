"""Parses the parts of a Dockerfile that tests need: stages, instructions, and the effect of .dockerignore."""

import fnmatch
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Stage:
    """One FROM and the (instruction, argument) pairs below it."""

    name: str
    image: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction):
        return [argument for name, argument in self.instructions if name == instruction]

    def last_command(self, instruction):
        """The exec form of CMD or HEALTHCHECK's CMD as a list."""
        return json.loads(re.search(r"\[.*\]$", self.all(instruction)[-1])[0])


def read(path=ROOT / "Dockerfile"):
    """The stages of a Dockerfile by name."""
    stages, current = {}, Stage("", "")  # ARGs before the first FROM
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        name, _, argument = line.partition(" ")
        if name == "FROM":
            image, _, stage = argument.partition(" AS ")
            stages[stage] = Stage(stage, image)
            current = stages[stage]
        else:
            current.instructions.append((name, argument.strip()))
    return stages


def variables(argument):
    """The NAME=value pairs of an ENV or ARG."""
    return {name: value.strip('"') for name, value in re.findall(r'(\w+)=("[^"]*"|\S*)', argument)}


def sent_to_the_build(path):
    """Whether .dockerignore lets a path through: the last pattern that fits decides."""
    is_sent = True
    for pattern in (ROOT / ".dockerignore").read_text().splitlines():
        if not pattern or pattern.startswith("#"):
            continue
        bare = pattern.removeprefix("!")
        names = [path, *map(str, Path(path).parents)]
        if any(fnmatch.fnmatch(name, bare) for name in names if name != "."):
            is_sent = pattern.startswith("!")
    return is_sent
