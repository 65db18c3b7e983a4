"""The prefix cache's bench: a round asks three times, and only the third finds anything."""

from benchmarks import speed
from benchmarks.speed import prefix_times
from tests.tiny import tiny_checkpoint


def test_a_row_for_every_length_the_model_takes(monkeypatch):
    cached = []
    monkeypatch.setattr(speed, "_first_block_ms", lambda engine, request: asked(engine, request, cached))
    times = list(prefix_times(tiny_checkpoint(), [10, 5000, 4000], 2))
    assert [time.prompt_tokens for time in times] == [10, 252]
    assert cached == [0, 0, 8] * 3 + [0, 0, 252] * 3
    assert all((time.without, time.first, time.again) == (1.0, 2.0, 3.0) for time in times)


def asked(engine, request, cached):
    cached.append(engine.generate([request])[0].stats.cached_tokens)
    return float((len(cached) - 1) % 3 + 1)
