"""Logits in chunks give the picks of logits at once."""

from pathlib import Path

from service.decode.modes import Dynamic, Remask, Speculative, Static
from service.engine import Engine, GenerationRequest, SamplingParams
from service.engine.forward import partition
from service.model import load_checkpoint

GOLDEN = Path(__file__).parents[2] / "golden" / "sdar-mrp-random-a"


def test_chunks_change_nothing(monkeypatch):
    checkpoint = load_checkpoint(GOLDEN)
    requests = [
        GenerationRequest(f"{number}", (3, 5, number), mode, SamplingParams(number % 2, seed=number), 20)
        for number, mode in enumerate([Static(), Dynamic(0.3), Speculative(4), Remask(0.3)] * 2)
    ]
    whole = Engine(checkpoint).generate(requests)
    monkeypatch.setattr(partition, "MAX_LOGITS", 7 * checkpoint.config.vocab_size)
    monkeypatch.setattr(partition, "MAX_SAMPLED_LOGITS", 3 * checkpoint.config.vocab_size)
    chunked = Engine(checkpoint).generate(requests)
    assert [completion.token_ids for completion in chunked] == [completion.token_ids for completion in whole]
