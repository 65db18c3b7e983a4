"""What deployment files rely on: the import path, typed arguments, the two deployments."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from service import app
from service.rayserve.scaling import deployment_policy
from service.settings.settings import Settings
from tests.rayserve.built import config_of, deployments

ROOT = Path(__file__).parents[2]
CONFIG = yaml.safe_load((ROOT / "deploy" / "serve.yaml").read_text())


def test_building_it_needs_neither_torch_nor_the_http_application():
    """The program, Serve's controller and every replica import this module; it would cost each of them seconds."""
    heavy = {"torch", "transformers", "service.gateway.ingress", "service.replica.replica", "service.api.protocol"}
    program = f"import sys, service.app; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_serve_makes_settings_of_a_files_args():
    """Serve looks at the annotation itself: a text, as postponed annotations are, would give a bare dict."""
    [parameter] = inspect.signature(app.build).parameters.values()
    assert parameter.annotation is Settings


def test_the_serve_config_is_valid_and_names_this_application():
    config = ServeDeploySchema.model_validate(CONFIG)
    [application] = config.applications
    assert application.import_path == "service.app:build"
    settings = Settings(**application.args)
    assert [deployment.name for deployment in deployments(app.build(settings))] == ["Generator", "Ingress"]


def deployed(**settings):
    return deployments(app.build(Settings(**{"device": "cpu", **settings})))


def test_a_trainer_is_deployed_only_if_mrp_learns():
    """One, which takes no CPU from the replicas and hears of them, as the ingress hears of it."""
    _, ingress = deployed()
    assert len(ingress.init_args) == 3
    generator, ingress = deployed(online_mrp_dir="versions", num_replicas=2)
    trainer = ingress.init_args[3]._bound_deployment
    assert (trainer.name, trainer.num_replicas, trainer.ray_actor_options["num_cpus"]) == ("MrpTrainer", 1, 0)
    assert trainer.init_args[1]._bound_deployment is generator


ONE, OTHERS = "SERVE_REPLICA::mrp#Generator#a1", "SERVE_REPLICA::mrp#Ingress#a2"


@pytest.mark.parametrize(
    ("args", "nodes", "running", "surge"),
    [
        # each node: CPUs, GPUs, and those that are free
        ({}, [(1, 0, 0, 0)], 1, False),  # one slot: the update would never end
        ({}, [(2, 0, 1, 0)], 1, True),
        ({}, [(2, 0, 0, 0)], 1, False),  # the other slot is another program's
        ({"num_replicas": 2}, [(2, 0, 1, 0)], 1, False),  # one is added, and both slots are needed then
        ({"num_replicas": 2}, [(3, 0, 2, 0)], 1, True),
        ({"num_replicas": 1}, [(2, 0, 0, 0)], 2, True),  # one of two stops at once
        ({"num_replicas": 1}, [(1, 0, 0, 0)], 2, False),  # the second one waits for a slot
        ({"num_replicas": 3}, [(4, 0, 4, 0)], 0, True),  # the first deployment
        ({"max_replicas": 4}, [(4, 0, 3, 0)], 1, True),
        ({"max_replicas": 4}, [(4, 0, 0, 0)], 4, False),  # four run, though one would do
        ({"num_replicas": 0, "max_replicas": 4}, [(1, 0, 1, 0)], 0, True),
        ({"device": "cuda"}, [(0, 0, 0, 0), (8, 1, 7, 0)], 1, False),
        ({"device": "cuda"}, [(0, 0, 0, 0), (8, 1, 7, 0), (8, 1, 8, 1)], 1, True),
        ({"device": "cuda"}, [(8, 2, 0, 1)], 1, False),  # no CPU is left beside the free GPU
        ({"device": "cuda", "tensor_parallel_size": 2}, [(8, 3, 6, 1), (8, 1, 8, 1)], 1, False),  # two halves
        ({"device": "cuda", "tensor_parallel_size": 2}, [(8, 2, 6, 0), (8, 2, 8, 2)], 1, True),
    ],
)
def test_an_update_starts_new_replicas_first_where_there_is_room(monkeypatch, args, nodes, running, surge):
    monkeypatch.setattr(app.ray, "is_initialized", lambda: True)
    totals = {number: {"CPU": float(cpus), "GPU": float(gpus)} for number, (cpus, gpus, _, _) in enumerate(nodes)}
    free = {number: {"CPU": float(cpus), "GPU": float(gpus)} for number, (*_, cpus, gpus) in enumerate(nodes)}
    monkeypatch.setattr(app, "total_resources_per_node", lambda: totals)
    monkeypatch.setattr(app, "available_resources_per_node", lambda: free)
    names = [{"name": name, "namespace": "serve"} for name in [ONE] * running + [OTHERS]]
    monkeypatch.setattr(app, "list_named_actors", lambda all_namespaces: names)
    generator, ingress = deployed(**args)
    assert (config_of(generator).max_surge_percent > 0) is surge
    assert config_of(ingress).max_surge_percent > 0


def test_an_update_starts_new_replicas_first_where_no_cluster_is_known():
    generator, _ = deployed()
    assert config_of(generator).max_surge_percent > 0


@pytest.mark.parametrize("ingresses", [1, 3])
def test_a_replica_takes_control_calls_of_every_ingress(ingresses):
    """Requests come by links, which Serve does not count."""
    generator, _ = deployed(api_server_count=ingresses)
    assert generator.max_ongoing_requests == 8 * ingresses


@pytest.mark.parametrize(
    ("build", "ingresses", "listens"),
    [("build", 1, False), ("build_one_machine", 1, True), ("build_one_machine", 2, False)],
)
def test_a_single_ingress_of_one_machine_listens_itself(build, ingresses, listens):
    _, ingress = deployments(getattr(app, build)(Settings(device="cpu", api_server_count=ingresses)))
    assert ingress.init_args[2] is listens


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("cuda", 1), ("cuda:1", 1)])
def test_a_replica_asks_for_a_gpu_only_where_it_uses_one(device, gpus):
    generator, _ = deployed(device=device)
    assert generator.ray_actor_options["num_gpus"] == gpus


@pytest.mark.parametrize(("minimum", "first"), [(2, None), (0, 1)])
def test_replicas_are_scaled_within_the_settings(minimum, first):
    generator, ingress = deployed(num_replicas=minimum, max_replicas=5, api_server_count=2, max_num_seqs=8)
    scaling = config_of(generator).autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.initial_replicas) == (minimum, 5, first)
    assert (scaling.upscale_delay_s, scaling.downscale_delay_s) == (5, 300)
    fixed = config_of(ingress).autoscaling_config
    assert (fixed.min_replicas, fixed.max_replicas) == (2, 2)
    for config in (scaling, fixed):
        assert config.policy.get_policy() is deployment_policy
        assert config.metrics_interval_s <= 1 < config.look_back_period_s
