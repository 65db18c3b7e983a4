"""A replica with little memory takes fewer requests, and says so on its card."""

import pytest

from service.engine_process import fitted_engine
from service.errors import SettingsError
from service.model.device import DeviceMemory

MIB = 2**20


def with_memory(monkeypatch, free):
    monkeypatch.setattr(fitted_engine, "memory_of", lambda _: DeviceMemory("cpu", free, 2**36))


@pytest.mark.parametrize(("free", "most"), [(2**34, 80), (30 * MIB, 40)])
def test_the_card_has_the_places_that_memory_has_room_for(make_generator, monkeypatch, free, most):
    with_memory(monkeypatch, free)
    card = make_generator(kv_cache_tokens="auto", gpu_memory_utilization=0.5).status().card
    assert 0 < card.slots <= most
    assert (card.slots == 80) is (free > 2**30)


def test_a_replica_without_memory_says_what_to_do(make_generator, monkeypatch):
    with_memory(monkeypatch, MIB)
    with pytest.raises(SettingsError, match="Lower max_rows, raise gpu_memory_utilization"):
        make_generator(kv_cache_tokens="auto")
