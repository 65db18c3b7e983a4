"""The scaling policy in Serve's controller, by the ingresses' reports."""

import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.config import AutoscalingPolicy

from service.rayserve import scaling
from service.rayserve.scaling import GENERATOR, STALE_S, WANTED, deployment_policy, policy

NOW = 1000.0


def deployment(name: str, running: list[str], target: int, reports: dict[str, tuple[float, float]]) -> Any:
    """A deployment with the reports of ingresses: age and value by name."""
    series = {ingress: [SimpleNamespace(timestamp=NOW - age, value=value)] for ingress, (age, value) in reports.items()}
    return SimpleNamespace(
        deployment_name=name,
        deployment_id=name,
        app_name="mrp",
        running_replicas=running,
        current_num_replicas=len(running),
        target_num_replicas=target,
        current_time=NOW,
        raw_metrics={WANTED: series} if series else {},
    )


def target_of(*ingresses: tuple[str, float, float], running: int | None = None, target: int = 3) -> float:
    reports = {name: (age, value) for name, age, value in ingresses}
    names = [name for name, *_ in ingresses]
    ingress = deployment("Ingress", names[:running], running or len(names), reports)
    decisions, state = policy({"i": ingress, "g": deployment(GENERATOR, ["g0"], target, {})})
    assert decisions.keys() == {"g"}
    assert state == {}
    return decisions["g"]


@pytest.mark.parametrize("wanted", [0.0, 0.01, 1.9, 7.3])
def test_the_target_is_the_number_that_an_ingress_reports(wanted: float) -> None:
    assert target_of(("a", 1.0, wanted)) == wanted


def test_ingresses_are_added_up() -> None:
    assert target_of(("a", 1.0, 0.7), ("b", 2.0, 0.8)) == pytest.approx(1.5)


def test_an_ended_ingress_does_not_count() -> None:
    assert target_of(("a", 1.0, 0.7), ("b", 1.0, 4.0), running=1) == 0.7


def test_without_a_report_the_target_stays() -> None:
    contexts = {"i": deployment("Ingress", ["a"], 1, {}), "g": deployment(GENERATOR, [], 2, {})}
    assert policy(contexts)[0] == {"g": 2}
    assert policy({"g": deployment(GENERATOR, [], 2, {})})[0] == {"g": 2}
    contexts["i"].raw_metrics = {WANTED: {"a": []}}
    assert policy(contexts)[0] == {"g": 2}


@pytest.mark.parametrize(("value", "expected"), [(0.5, 3.0), (4.0, 4.5)])
def test_without_a_fresh_report_of_every_ingress_the_target_may_only_rise(value: float, expected: float) -> None:
    assert target_of(("a", 1.0, 0.5), ("b", STALE_S, 9.0)) == 3
    assert target_of(("a", 1.0, value), ("b", 1.0, 0.5), ("c", STALE_S + 1, 9.0)) == expected


def test_while_an_ingress_is_replaced_the_target_does_not_fall() -> None:
    contexts = {"i": deployment("Ingress", ["a"], 2, {"a": (1.0, 0.5)}), "g": deployment(GENERATOR, [], 2, {})}
    assert policy(contexts)[0] == {"g": 2}


@pytest.mark.parametrize(("running", "target", "expected"), [([], 0, 0), ([], 1, 1), ([], 4, 1), (["g0"], 1, 0)])
def test_the_first_replica_starts_even_if_no_request_needs_it_any_more(
    running: list[str], target: int, expected: int
) -> None:
    contexts = {
        "i": deployment("Ingress", ["a"], 1, {"a": (1.0, 0.0)}),
        "g": deployment(GENERATOR, running, target, {}),
    }
    assert policy(contexts)[0] == {"g": expected}


def test_the_controller_needs_nothing_of_the_model() -> None:
    script = "import sys, service.rayserve.scaling; assert not {'torch', 'fastapi', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_serve_calls_it_for_each_deployment_and_the_generator_follows_the_ingresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Serve pickles the policy of each deployment. Both must be the function of one module in the controller."""
    monkeypatch.setattr(scaling, "_deployments", {})
    policies = [AutoscalingPolicy(policy_function="service.hooks:deployment_autoscaling_policy") for _ in range(2)]
    of_generator, of_ingress = (pickle.loads(policy.get_serialized_policy_def()) for policy in policies)
    assert of_generator is of_ingress is deployment_policy
    generator = deployment(GENERATOR, [], 0, {})
    assert of_generator(generator) == (0, {})  # no ingress is known yet
    assert of_ingress(deployment("Ingress", ["a"], 1, {"a": (1.0, 0.01)})) == (1, {})
    assert of_generator(generator) == (0.01, {})  # Serve rounds up: from zero to one
    of_ingress(deployment("Ingress", ["a"], 1, {"a": (1.0, 2.7)}))
    assert of_generator(generator) == (2.7, {})
    other = deployment(GENERATOR, ["g"], 4, {})
    other.app_name = "another"
    assert of_generator(other) == (4, {})
