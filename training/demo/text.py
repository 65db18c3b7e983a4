"""Python text for training: the standard library's own sources, cut into windows of tokens.

Every machine that can run the recipe has these sources. Whole files are held out, by a hash of their names. The corpus
is that of the running Python, so another minor version trains on slightly different text.
"""

import os
import random
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer

from training.demo.tasks import is_heldout
from training.demo.tokenizer import encode_text

#: A window of 6 blocks of 16 whose first 2 are the prompt.
WINDOW, PROMPT = 96, 32

_LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "__pycache__"}


def library_files(*, heldout: bool) -> Iterator[str]:
    """The text of every source file on one side of the split, in the order of their names."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(_sources(root)):
        if is_heldout(path.relative_to(root).as_posix()) == heldout:
            yield path.read_text(encoding="utf-8", errors="ignore")


def _sources(root: Path) -> Iterator[Path]:
    """The source files under a folder. Folders that are left out are not entered: they may hold many thousand files."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


class Windows:
    """Draws windows of `WINDOW` tokens of text, at random places of files that are long enough."""

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
        encoded = (encode_text(tokenizer, text) for text in texts)
        self._files = [tokens for tokens in encoded if len(tokens) >= WINDOW]
        self._lengths = [len(tokens) for tokens in self._files]

    def draw(self, rng: random.Random) -> list[int]:
        """Draws one window. Long files are drawn more often."""
        tokens = rng.choices(self._files, self._lengths)[0]
        start = rng.randrange(len(tokens) - WINDOW + 1)
        return tokens[start : start + WINDOW]
