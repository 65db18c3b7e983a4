"""The replicas of prompts, in simulations without Ray: stickiness, bounds, balance, ingresses that agree."""

import random
from collections import Counter

import pytest

from service.routing.affinity import BOUND, Affinity, PrefixTable, RoutingDecision
from service.routing.keys import PrefixKeys, prefix_keys
from tests.routing.test_keys import chat, request


def prompt(name: str, length: int = 800, **more: str) -> PrefixKeys:
    return prefix_keys(request(text=(name + "-") * (length // (len(name) + 1)), **more))


class Fleet:
    """Replicas with loads, and an ingress that routes to them. Requests stay until the test ends them."""

    def __init__(self, count: int, slack: float = 1, seed: int = 0) -> None:
        self.affinity = Affinity(slack, rng=random.Random(seed))
        self.loads: dict[str, float] = {f"r{n}": 0 for n in range(count)}

    def route(self, keys: PrefixKeys) -> tuple[str, RoutingDecision]:
        decision = self.affinity.choose(keys, self.loads)
        taken = decision.replica
        self.affinity.record(keys, taken)
        self.loads[taken] += 1
        return taken, decision

    def end(self, replica: str) -> None:
        self.loads[replica] -= 1


def test_the_turns_of_a_chat_stay_with_their_replica() -> None:
    fleet, homes = Fleet(4), {}
    for turn in range(6):
        for session in range(12):
            texts = [f"session {session} turn {n}: " + "y" * 40 for n in range(2 * turn + 1)]
            taken, decision = fleet.route(prefix_keys(request(messages=chat(*texts))))
            assert decision.reason == ("prefix" if turn else "load")
            assert homes.setdefault(session, taken) == taken
            fleet.end(taken)
    assert len(set(homes.values())) > 1


def test_a_named_session_stays_whatever_it_says_and_its_latest_replica_counts() -> None:
    fleet = Fleet(4)
    first, decision = fleet.route(prompt("a", session="s"))
    assert decision.reason == "load"
    fleet.end(first)
    for name in "bcd":
        assert fleet.route(prompt(name, session="s")) == (first, RoutingDecision(first, "prefix"))
        fleet.end(first)
    fleet.loads[first] = 50
    second, decision = fleet.route(prompt("e", session="s"))
    assert (second != first, decision.reason) == (True, "overloaded")
    fleet.loads = dict.fromkeys(fleet.loads, 0)
    assert fleet.route(prompt("f", session="s"))[0] == second


def test_a_short_match_does_not_count() -> None:
    fleet = Fleet(2)
    head = "h" * 200
    for tail, reason in (("a" * 100, "load"), ("b" * 100, "prefix"), ("c" * 2000, "load")):
        assert fleet.route(prefix_keys(request(text=head + tail)))[1].reason == reason


def test_the_longest_known_beginning_decides() -> None:
    affinity, loads = Affinity(5), {"r0": 0, "r1": 3}
    affinity.record(prompt("a", 400), "r0")
    affinity.record(prompt("a", 1600), "r1")
    assert affinity.choose(prompt("a", 2000), loads) == RoutingDecision("r1", "prefix")
    assert affinity.choose(prompt("a", 400), loads) == RoutingDecision("r0", "prefix"), "the least loaded of two"


@pytest.mark.parametrize("count", [2, 4, 16])
@pytest.mark.parametrize("named", [False, True])
def test_a_hot_prefix_alone_is_spread_within_the_bound(count: int, named: bool) -> None:
    fleet, hot = Fleet(count), prompt("hot", session="s" if named else "")
    for number in range(1, 40 * count):
        fleet.route(hot)
        mean = number / count
        assert max(fleet.loads.values()) <= max(BOUND * mean, mean + 1) + 1e-9
    assert min(fleet.loads.values()) >= 20


def test_replicas_that_are_gone_drop_out() -> None:
    fleet = Fleet(3)
    first, _ = fleet.route(prompt("a", session="s"))
    del fleet.loads[first]
    second, decision = fleet.route(prompt("a", session="s"))
    assert (second != first, decision.reason) == (True, "load")
    assert fleet.route(prompt("a"))[0] == second
    fleet.loads = {"new": 0}
    assert fleet.route(prompt("a"))[0] == "new"


def test_ingresses_that_know_nothing_of_each_other_find_the_same_replica() -> None:
    fleets = [Fleet(8, seed=seed) for seed in range(3)]
    for number in range(50):
        texts = [f"session {number}", "an answer", "and then?"]
        replica = {
            fleet.route(prefix_keys(request(messages=chat(*texts[: 1 + 2 * (n % 2)]))))[0]
            for n, fleet in enumerate(fleets)
        }
        assert len(replica) == 1
        for fleet in fleets:
            fleet.loads = dict.fromkeys(fleet.loads, 0)


def test_ingresses_that_see_other_loads_agree_on_a_named_session() -> None:
    """One ingress counts too many requests at a replica for a moment."""
    for number in range(20):
        first, second = Fleet(2, slack=2, seed=1), Fleet(2, slack=2, seed=2)
        keys = prompt("a", session=f"s{number}")
        replica, _ = first.route(keys)
        second.loads[replica] += 1
        assert second.route(keys)[0] == replica
        busy = Fleet(2, slack=2)
        busy.loads[replica] = 9
        assert busy.route(keys)[0] != replica


@pytest.mark.parametrize("count", [4, 64])
def test_homes_are_even_and_do_not_cost_balance(count: int) -> None:
    """New prompts are spread as evenly as with two random choices."""
    by_home, by_chance, homes = Fleet(count), Fleet(count), Counter[str]()
    for number in range(50 * count):
        keys = prompt(f"p{number}")
        homes[by_home.affinity.choose(keys, dict.fromkeys(by_home.loads, 0)).replica] += 1
        by_home.route(keys)
        by_chance.route(PrefixKeys(keys.keys, keys.shares))
    assert max(homes.values()) < 2 * 50
    assert max(by_home.loads.values()) <= max(by_chance.loads.values()) + 2 <= 56


def test_the_table_keeps_what_was_used_last() -> None:
    table, alive = PrefixTable(50), {"r0"}
    for number in range(40):
        table.record(prompt("often"), "r0")
        table.record(prompt(f"p{number}"), "r0")
    assert len(table) == 50
    assert table.longest(prompt("often"), 1.0, alive) == ("r0",)
    assert table.longest(prompt("p39"), 1.0, alive) == ("r0",)
    assert table.longest(prompt("p0"), 0.0, alive) == ()
