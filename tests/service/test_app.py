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
    bound = app.build(settings)
    assert bound._bound_deployment.name == "Ingress"


@pytest.mark.parametrize(
    ("replicas", "cpus", "surge"), [(1, 1, True), (1, 4, True), (2, 2, False), (2, 3, True), (3, None, True)]
)
def test_an_update_starts_new_replicas_first_where_there_is_room_or_but_one(monkeypatch, replicas, cpus, surge):
    monkeypatch.setattr(app.ray, "is_initialized", lambda: cpus is not None)
    monkeypatch.setattr(app.ray, "cluster_resources", lambda: {"CPU": cpus})
    ingress = app.build(Settings(device="cpu", num_replicas=replicas))._bound_deployment
    generator = ingress.init_args[1]._bound_deployment
    assert (generator._deployment_config.max_surge_percent > 0) is surge
    assert ingress._deployment_config.max_surge_percent > 0


@pytest.mark.parametrize("ingresses", [1, 3])
def test_a_replica_takes_control_calls_of_every_ingress(ingresses):
    """Requests come by links, which Serve does not count."""
    generator = app.build(Settings(device="cpu", api_server_count=ingresses))._bound_deployment.init_args[1]
    assert generator._bound_deployment.max_ongoing_requests == 8 * ingresses


@pytest.mark.parametrize(
    ("build", "ingresses", "listens"),
    [("build", 1, False), ("build_one_machine", 1, True), ("build_one_machine", 2, False)],
)
def test_a_single_ingress_of_one_machine_listens_itself(build, ingresses, listens):
    ingress = getattr(app, build)(Settings(device="cpu", api_server_count=ingresses))._bound_deployment
    assert ingress.init_args[2] is listens


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("cuda", 1), ("cuda:1", 1)])
def test_a_replica_asks_for_a_gpu_only_where_it_uses_one(device, gpus):
    generator = app.build(Settings(device=device))._bound_deployment.init_args[1]
    assert generator._bound_deployment.ray_actor_options["num_gpus"] == gpus


def deployed(**settings):
    ingress = app.build(Settings(device="cpu", **settings))._bound_deployment
    return ingress.init_args[1]._bound_deployment, ingress


@pytest.mark.parametrize(("minimum", "first"), [(2, None), (0, 1)])
def test_replicas_are_scaled_within_the_settings(minimum, first):
    generator, ingress = deployed(num_replicas=minimum, max_replicas=5, api_server_count=2, max_num_seqs=8)
    scaling = generator._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.initial_replicas) == (minimum, 5, first)
    assert (scaling.upscale_delay_s, scaling.downscale_delay_s) == (5, 300)
    fixed = ingress._deployment_config.autoscaling_config
    assert (fixed.min_replicas, fixed.max_replicas) == (2, 2)
    for config in (scaling, fixed):
        assert config.policy.get_policy() is deployment_policy
        assert config.metrics_interval_s <= 1 < config.look_back_period_s
