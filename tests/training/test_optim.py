"""The schedules of the learning rate, and the optimisers of each kind of weight."""

import math

import pytest
import torch
from torch import nn
from transformers import get_cosine_with_min_lr_schedule_with_warmup

from training.optim import Optimiser, Schedule
from training.recipes import RECIPES


@pytest.mark.parametrize("steps", [100, 1000])
def test_the_published_schedule_is_that_of_transformers(steps):
    """With a warm-up of 3 %. The published one begins its warm-up with an update at 0, ours an update later."""
    weight = nn.Parameter(torch.zeros(1))
    expected = get_cosine_with_min_lr_schedule_with_warmup(
        torch.optim.AdamW([weight], lr=1e-3), math.ceil(0.03 * steps), steps, min_lr_rate=0.1
    )
    schedule = RECIPES["published"].schedule(steps)
    for step in range(steps):
        if step >= schedule.warmup:
            assert schedule.at(step, step / steps) == pytest.approx(expected.get_last_lr()[0], rel=1e-6)
        expected.optimizer.step()
        expected.step()


def test_the_default_schedule_is_flat_and_falls_along_a_line():
    schedule = RECIPES["default"].schedule(1000)
    assert schedule == Schedule(3e-3, warmup=100)
    rates = [schedule.at(step, step / 1000) for step in (0, 99, 399, 700, 999)]
    assert rates == pytest.approx([3e-5, 3e-3, 3e-3, 1.5e-3, 3e-5])
    assert RECIPES["default"].schedule(1000, warmup=7).warmup == 7


def test_matrices_have_muon_or_like_all_weights_adamw():
    named = [("layers.0.weight", nn.Parameter(torch.ones(3, 2))), ("norm.weight", nn.Parameter(torch.ones(3)))]

    def moved(optimiser: Optimiser) -> list[float]:
        optimiser.step(sum((parameter**2).sum() for _, parameter in named), 0.0)
        return [float((1 - parameter.detach()).abs().max()) for _, parameter in named]

    adamw = moved(Optimiser(named, Schedule(0.01, warmup=0), matrices="adamw"))
    assert adamw == pytest.approx([0.01, 0.01], rel=1e-3)  # the first update of AdamW without decay has the rate's size
    for _, parameter in named:
        parameter.data.fill_(1.0)
    matrix, norm = moved(Optimiser(named, Schedule(0.01, warmup=0)))
    assert norm == pytest.approx(0.01, rel=1e-3)
    assert matrix != pytest.approx(0.01, rel=1e-2)
