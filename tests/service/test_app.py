"""What deployment files rely on: the import path, typed arguments, the two deployments."""

import inspect
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema

from service import app
from service.settings import Settings

CONFIG = yaml.safe_load((Path(__file__).parents[2] / "deploy" / "serve.yaml").read_text())


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


def test_a_misspelt_key_of_the_serve_config_is_caught():
    with pytest.raises(ValidationError, match="import_pth"):
        ServeDeploySchema.model_validate({**CONFIG, "applications": [{"import_pth": "service.app:build"}]})


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


def test_there_are_as_many_ingresses_as_are_asked_for():
    ingress = app.build(Settings(device="cpu", num_ingresses=3))._bound_deployment
    assert ingress.num_replicas == 3
    assert ingress.init_args[1]._bound_deployment.num_replicas == 1


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("cuda", 1), ("cuda:1", 1)])
def test_a_replica_asks_for_a_gpu_only_where_it_uses_one(device, gpus):
    generator = app.build(Settings(device=device))._bound_deployment.init_args[1]
    assert generator._bound_deployment.ray_actor_options["num_gpus"] == gpus
