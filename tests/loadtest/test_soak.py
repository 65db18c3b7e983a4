"""What a soak checks: growth of memory, drift, failures."""

import argparse
import json

import pytest

from loadtest.generator.rows import Level
from loadtest.soak import conclude
from tests.loadtest.fake import request


def memory(last=100.0):
    """A process that fills its caches in the first quarter, then goes from 100 MiB to `last`; one that comes late."""
    sizes = [50.0] * 10 + [100.0] * 20 + [last] * 10
    return [{"replica 1": size} | ({"ingress 2": 9.0} if number > 30 else {}) for number, size in enumerate(sizes)]


def rows_of(later=1.0, **changes):
    """A request every half second, whose times in the last quarter are `later` times as long."""
    rows = [Level(0.0, 430.0, 2)]
    for number in range(860):
        at = number / 2
        rows.append(request(at, first=50.0 * (later if at > 330 else 1), **changes))
    return rows


def status(capsys, *, mib=100.0, **changes):
    arguments = argparse.Namespace(minutes=7.0, users=2, grow=0.05, drift=0.25)
    code = conclude(arguments, rows_of(**changes), memory(mib))
    return code, json.loads(capsys.readouterr().out)


def test_a_steady_soak_passes(capsys):
    code, result = status(capsys)
    assert (code, result["broken"], result["requests"], result["failed"]) == (0, [], 860, 0)
    assert result["tokens_per_s"] == 24
    assert result["drift"]["first_block_p50_ms"] == 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mib": 110.0}, "replica 1 grew by 10.0%"),
        ({"later": 1.5}, "first_block_p50_ms changed by +50%"),
        ({"status": 500}, "860 requests failed"),
    ],
)
def test_a_soak_fails_by_growth_drift_or_errors(capsys, changes, why):
    code, result = status(capsys, **changes)
    assert code == 1
    assert why in result["broken"]
