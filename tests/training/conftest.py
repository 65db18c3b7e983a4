"""The demo's tokenizer, trained once on a part of its examples."""

import pytest
from tokenizers import Tokenizer

from training.demo.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer(examples=1500)
