"""A constraint that takes too much is tried in a process that ends, and takes nothing here."""

from collections.abc import Iterator

import pytest

from service.constraints.constraint import Constraint
from service.constraints.trials import MAX_BYTES, Trials
from service.errors import InvalidRequest
from tests.constraints.checkpoints import DEMO, vocabulary

PRIMES = (99991, 99989, 99971, 99961, 99929, 99923, 99907, 99901)

#: each took this process down, or gigabytes or minutes of it, when it was compiled here
BOMBS = {
    "repeated repetitions": Constraint.regex("(((a{99}){99}){99}){99}"),
    "large divisors": Constraint.json(
        {"properties": {f"p{number}": {"type": "integer", "multipleOf": number} for number in PRIMES}}, "form"
    ),
    "common multiples": Constraint.json({"allOf": [{"multipleOf": n} for n in (7, 11, 13, 17, 19, 23)]}, "form"),
}


@pytest.fixture(scope="module")
def trials() -> Iterator[Trials]:
    trials = Trials(vocabulary(DEMO).definition)
    yield trials
    trials.close()


@pytest.mark.parametrize(
    "name", ["repeated repetitions", *(pytest.param(name, marks=pytest.mark.slow) for name in [*BOMBS][1:])]
)
def test_a_constraint_beyond_the_limits_of_a_trial_is_refused(trials: Trials, name: str) -> None:
    with pytest.raises(InvalidRequest, match="takes more than 2 s of CPU time, 10 s or 128 MiB to compile"):
        trials.run(BOMBS[name])


def test_a_common_constraint_costs_little_and_an_error_is_told(trials: Trials) -> None:
    assert trials.run(Constraint.regex("[0-9]+")).size < MAX_BYTES / 10
    with pytest.raises(InvalidRequest, match="regex cannot be used"):
        trials.run(Constraint.regex("("))


def test_a_process_that_has_ended_is_started_again(trials: Trials) -> None:
    trials.run(Constraint.regex("a"))
    trials.close()
    assert trials.run(Constraint.regex("a")).size >= 0
