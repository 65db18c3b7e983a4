"""Seeded random worlds: machines, users and drafts of all kinds. Nobody tunes on them."""

import random
from dataclasses import asdict

from benchmarks.simulated.network import Acceptance
from benchmarks.simulated.runner import DeviceTimes, HostTimes, Points
from benchmarks.simulated.worlds import Load, Traffic, World, trees

_ROWS = tuple(1 << power for power in range(10))
#: the most steps of the engine at a load that stays, and of each of several loads
_STEPS, _LOADS, _STEPS_OF_A_LOAD = 500, 5, 200


def random_world(seed: int) -> World:
    """The world of this seed. In every third one the load changes."""
    rng = random.Random(seed)
    block_size = rng.choice([4, 8, 8, 16])
    device, host = _device(rng), _host(rng)
    users = [round(_between(rng, 1, 128)) for _ in range(_LOADS if seed % 3 == 2 else 1)]
    steps = _STEPS_OF_A_LOAD if len(users) > 1 else _STEPS
    acceptance = Acceptance(rng.uniform(0.0, 4.0), rng.uniform(0.0, 0.6), rng.uniform(0.0, 1.0))
    return World(
        f"random {seed}",
        device,
        host,
        tuple(Load(count, steps=steps) for count in users),
        _traffic(rng),
        block_size,
        acceptance,
        fixed=trees(block_size),
    )


def _between(rng: random.Random, low: float, high: float) -> float:
    """A number whose logarithm is uniform."""
    return float(low * (high / low) ** rng.random())


def _device(rng: random.Random) -> DeviceTimes:
    """Its times are flat up to some number of rows, and then grow with them. MRP: from free to a forward's price."""
    fastest, free_rows, sharpness = _between(rng, 0.5, 20.0), _between(rng, 2, 200), rng.uniform(1.0, 4.0)
    backbone: Points = tuple(
        (rows, fastest * (1.0 + (rows / free_rows) ** sharpness) ** (1.0 / sharpness)) for rows in _ROWS
    )
    share = rng.random() ** 2
    mrp = tuple((rows, share * milliseconds) for rows, milliseconds in backbone)
    graphs = rng.random() < 0.8
    noise = rng.choice([0.0, 0.05, 0.2])
    return DeviceTimes(backbone, mrp, graphs=graphs, replays=graphs and rng.random() < 0.8, noise=noise)


def _host(rng: random.Random) -> HostTimes:
    """An H100's host, faster or slower in all, and in each part. Half of the worlds have further waits."""
    factor, wait = _between(rng, 0.1, 3.0), _between(rng, 0.1, 5.0) if rng.random() < 0.5 else 0.0
    usual = asdict(HostTimes(sampler=0.3))
    return HostTimes(**{name: factor * _between(rng, 0.5, 2.0) * usual[name] for name in usual} | {"wait": wait})


def _traffic(rng: random.Random) -> Traffic:
    prompt, answer = round(_between(rng, 8, 256)), round(_between(rng, 8, 128))
    return Traffic((prompt, 3 * prompt), (answer, 3 * answer), gap=_between(rng, 0.5, 100.0))
