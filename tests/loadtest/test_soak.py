"""What a soak checks: growth of memory, drift, failures."""

import argparse
import json

import pytest

from loadtest.generator.rows import Level
from loadtest.report.driver import Record
from loadtest.report.scenario import Run
from loadtest.soak import conclude
from tests.loadtest.simulated import request

RUN = Run("soak", "430:2", modes="static")


def memory(last=100.0):
    """A process that fills its caches in the first quarter, then goes from 100 MiB to `last`; one that comes late."""
    sizes = [50.0] * 10 + [100.0] * 20 + [last] * 10
    return [
        (10.0 * number, {"Generator 1": size} | ({"Ingress 2": 9.0} if number > 30 else {}))
        for number, size in enumerate(sizes)
    ]


def record(later=1.0, **changes):
    """A request every half second, whose times in the last quarter are `later` times as long."""
    rows = [Level(0.0, 0, 2)]
    for number in range(860):
        at = number / 2
        rows.append(request(at, first=50.0 * (later if at > 330 else 1), **changes))
    return Record(RUN, rows)


def status(folder, capsys, *, mib=100.0, **changes):
    arguments = argparse.Namespace(minutes=7.0, users=2, grow=0.05, drift=0.25, out=folder)
    code = conclude(arguments, record(**changes), memory(mib))
    return code, json.loads(capsys.readouterr().out)


def test_a_steady_soak_passes_and_is_drawn(tmp_path, capsys):
    code, result = status(tmp_path, capsys)
    assert (code, result["broken"], result["requests"], result["failed"]) == (0, [], 860, 0)
    assert result["tokens_per_s"] == 24
    assert result["drift"]["first_block_p50_ms"] == 0
    assert (tmp_path / "soak.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mib": 110.0}, "Generator 1 grew by 10.0%"),
        ({"later": 1.5}, "first_block_p50_ms changed by +50%"),
    ],
)
def test_a_soak_fails_by_growth_drift_or_errors(tmp_path, capsys, changes, why):
    code, result = status(tmp_path, capsys, **changes)
    assert code == 1
    assert why in result["broken"]
