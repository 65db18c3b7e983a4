"""Windows of text: whole files are held out, a window is running text, batches mix them with the tasks."""

from itertools import islice

import pytest

from training.demo.batches import TEXT_SHARE, Batches
from training.demo.tasks import is_heldout
from training.demo.text import PROMPT, WINDOW, Windows, library_files

TEXTS = ["".join(f"line {n} of file {name}\n" for n in range(60)) for name in "ab"]


@pytest.fixture(scope="module")
def windows(tokenizer):
    return Windows(tokenizer, [*TEXTS, "too short"])


def test_whole_files_are_held_out_one_in_ten():
    names = [f"folder/module_{n}.py" for n in range(2000)]
    assert sum(map(is_heldout, names)) / len(names) == pytest.approx(0.1, abs=0.03)
    first = {side: next(library_files(heldout=side)) for side in (False, True)}
    assert first[False] != first[True]


def test_batches_mix_windows_with_the_tasks(tokenizer, windows):
    block = 16
    batches = list(islice(Batches(tokenizer, block, 8, seed=0, text=windows), 400))
    of_text = [batch for batch in batches if batch.layout.length == WINDOW and batch.layout.clean == WINDOW - block]
    assert len(of_text) / len(batches) == pytest.approx(TEXT_SHARE, abs=0.1)
    for batch in of_text[:5]:
        assert batch.layout.first == PROMPT
        assert batch.answer.all(), "every position behind the prompt is decoded"
        assert not batch.tail.any()
        assert all(any(tokenizer.decode(row) in text for text in TEXTS) for row in batch.tokens.tolist())
