"""The demo's training examples as batches. The rows of a batch have the same number of blocks, so none is padded."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import count

from tokenizers import Tokenizer

from training.batch import Batch, collate
from training.demo import tasks
from training.demo.text import PROMPT, WINDOW, Windows
from training.demo.tokenizer import END, MASK, PAD, control, encode_prompt
from training.layout import Layout

#: the share of examples that are windows of text
TEXT_SHARE = 0.35
_DRAWN_AT_ONCE = 8192
#: batches of a pool that a numbered stream uses; a pool has more, whose number varies
_NUMBERED = 256


class Batches:
    """An endless, seeded stream of batches of new training examples: tasks, and windows of text if given.

    `share`: the share of windows of text. `draw`: draws an example of the tasks. `change`: changes the tokens of an
    example, prompt and answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        block: int,
        size: int,
        seed: int,
        text: Windows | None = None,
        draw: Callable[[random.Random], tasks.Example] = tasks.draw,
        change: Callable[[random.Random, list[int]], list[int]] = lambda _, tokens: tokens,
        share: float = TEXT_SHARE,
    ) -> None:
        self._tokenizer = tokenizer
        self._block = block
        self._size = size
        self._text, self._share = text, share
        self._draw = draw
        self._change = change
        self._seed = seed

    def __iter__(self) -> Iterator[Batch]:
        rng = random.Random(self._seed)
        while True:
            yield from self._pool(rng)

    def numbered(self, first: int) -> Iterator[Batch]:
        """The batches from number `first` on, each a function of its number and the seed."""
        pool, index = divmod(first, _NUMBERED)
        for number in count(pool):
            yield from self._pool(random.Random(f"{self._seed}/{number}"))[index:_NUMBERED]
            index = 0

    def _pool(self, rng: random.Random) -> list[Batch]:
        num_windows = round(_DRAWN_AT_ONCE * self._share) if self._text else 0
        examples = [self._draw(rng) for _ in range(_DRAWN_AT_ONCE - num_windows)]
        windows = [self._text.draw(rng) for _ in range(num_windows)] if self._text else []
        return self._shuffled(rng, examples, windows)

    def _shuffled(self, rng: random.Random, examples: list[tasks.Example], windows: list[list[int]]) -> list[Batch]:
        buckets: dict[tuple[int, int], list[tuple[list[int], int]]] = defaultdict(list)
        buckets[WINDOW // self._block, PROMPT // self._block] += [(window, PROMPT) for window in windows]
        self._tokenizer.encode_special_tokens = True
        answers = self._tokenizer.encode_batch([example.answer for example in examples], add_special_tokens=False)
        end = control(self._tokenizer, END)
        for example, answer in zip(examples, answers, strict=True):
            prompt = encode_prompt(self._tokenizer, example.prompt)
            tokens = self._change(rng, [*prompt, *answer.ids, end])
            buckets[-(-len(tokens) // self._block), len(prompt) // self._block].append((tokens, len(prompt)))
        batches = [
            self.collate(rows[at : at + self._size])
            for rows in buckets.values()
            for at in range(0, len(rows) - self._size + 1, self._size)
        ]
        rng.shuffle(batches)
        return batches

    def collate(self, rows: list[tuple[list[int], int]]) -> Batch:
        """A batch of `rows`: tokens and prompt length. All rows have equal numbers of prompt and answer blocks."""
        tokens, prompt = rows[0]
        layout = Layout(-(-len(tokens) // self._block) * self._block, prompt // self._block * self._block, self._block)
        return collate(rows, layout, control(self._tokenizer, PAD), control(self._tokenizer, MASK))
