"""The files for `ray up`: what Ray's own schema and checks say, and that they agree with image and program."""

import copy

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.sdk import get_docker_host_mount_location

from service.cli import cluster as program
from service.settings.settings import Settings
from tests.deploy.dockerfile import ROOT, read, variables

FILES = ("ray-cluster.yaml", "ray-cluster-local.yaml")


def raw(name):
    return yaml.safe_load((ROOT / "deploy" / name).read_text())


def checked(config):
    """As `ray up` reads it: the provider's defaults filled in, then the schema and Ray's own conditions."""
    filled = prepare_config(copy.deepcopy(config))
    validate_config(filled)
    return filled


@pytest.mark.parametrize("name", FILES)
def test_ray_accepts_the_file(name):
    assert checked(raw(name))["docker"]["image"] == "mrp-serve:cuda"


def test_the_head_has_no_gpu_and_every_worker_one():
    types = checked(raw("ray-cluster.yaml"))["available_node_types"]
    assert {name: kind["resources"]["GPU"] for name, kind in types.items()} == {"head": 0, "gpu-worker": 1}
    assert types["head"]["resources"]["CPU"] == 0
    worker = types["gpu-worker"]
    assert 1 <= worker["min_workers"] < worker["max_workers"] <= raw("ray-cluster.yaml")["max_workers"]


def test_the_local_cluster_counts_its_machines():
    config = raw("ray-cluster-local.yaml")
    assert config["min_workers"] == config["max_workers"] == len(config["provider"]["worker_ips"])


def test_the_serve_config_leaves_sizes_to_the_replica():
    """A GPU has room for more requests than a number for all machines allows."""
    [application] = raw("serve.yaml")["applications"]
    assert Settings(**application["args"]) == Settings()


@pytest.mark.parametrize("name", FILES)
def test_containers_have_the_programs_environment_and_the_secrets(name):
    config = raw(name)
    options = dict(
        option.split(" ", 1) for option in config["docker"]["run_options"] if not option.startswith("--env ")
    )
    environment = {
        key: value
        for option in config["docker"]["run_options"]
        if option.startswith("--env ")
        for key, value in variables(option.removeprefix("--env ")).items()
    }
    assert len(config["docker"]["run_options"]) == len(set(config["docker"]["run_options"]))
    assert environment.items() >= {**program.ENVIRONMENT, "RAY_AUTH_MODE": "token"}.items()
    [mounted] = config["file_mounts"]
    assert options["--env-file"] == get_docker_host_mount_location(config["cluster_name"]) + mounted
    assert f"VOLUME {options['--volume'].split(':')[1]}" in (ROOT / "Dockerfile").read_text()
    home = next(variables(argument)["HOME"] for argument in read()["runtime"].all("ENV") if "HOME=" in argument)
    assert mounted.startswith(home)


@pytest.mark.parametrize("name", FILES)
def test_the_dashboard_listens_on_the_head_alone(name):
    [start] = [command for command in raw(name)["head_start_ray_commands"] if "ray start" in command]
    assert "--dashboard-host=127.0.0.1" in start
    assert "--num-cpus=0 --num-gpus=0" in start
