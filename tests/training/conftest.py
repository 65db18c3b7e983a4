"""The demo's tokenizer, trained once on a part of its examples, and texts for golden checkpoints."""

import json

import pytest
import torch
from tokenizers import Tokenizer

from training.demo.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer(examples=1500)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Texts of the golden vocabulary's words."""
    file = tmp_path_factory.mktemp("data") / "texts.jsonl"
    rng = torch.Generator().manual_seed(0)
    with file.open("w") as out:
        for number in range(40):
            words = torch.randint(0, 500, (9 + number % 20,), generator=rng).tolist()
            out.write(json.dumps({"text": " ".join(f"w{word}" for word in words)}) + "\n")
    return file


def curve(out):
    """The losses of all updates of a training."""
    return [json.loads(line) for line in (out / "training" / "losses.jsonl").read_text().splitlines()]
