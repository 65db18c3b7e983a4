"""The Serve application: `service.app:build` is the import path of every deployment file.

    applications: [{name: mrp, import_path: "service.app:build", args: {model: …, num_replicas: 2}}]

`args` are settings (`service/settings`). Resources go under `deployments: [{name: Generator, …}]` of the file.
"""

# No `from __future__ import annotations` here: Serve turns a deployment file's `args` into `Settings` only if the
# annotation of `build` is the class itself.
import warnings
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray._private.state import available_resources_per_node, total_resources_per_node
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.util import list_named_actors

from service.rayserve.deployments import GeneratorDeployment, IngressDeployment
from service.rayserve.scaling import GENERATOR
from service.settings.settings import Settings

#: the most requests in progress at one ingress; there they only wait
_INGRESS_REQUESTS = 4096
#: control calls of an ingress that a replica takes at once; requests come by links, which Serve does not see
_CONTROL_CALLS = 8
#: seconds between Serve's health checks; Serve then replaces a dead replica, whose requests fail over at once
_HEALTH_CHECK_S = 1.0
#: seconds a health check may take; Serve kills a replica that exceeds them three times in a row
HANGS_S = 5.0
#: additional replicas during an update, in percent of all, at least one
_SURGE_PERCENT = 20
#: seconds between two reports of the ingresses to Serve's controller, and the longer period that it evaluates
_REPORT_EVERY_S = 1.0
_LOOK_BACK_S = 5.0
#: seconds for which more, or fewer, replicas must be needed before Serve starts or stops some. A deployment file can
#: have others (docs/deploy.md).
UPSCALE_DELAY_S, DOWNSCALE_DELAY_S = 5.0, 300.0
#: by name, so that Serve's controller imports it once for both deployments (rayserve/scaling.py)
_POLICY = "service.hooks:deployment_autoscaling_policy"


def build(args: Settings) -> Application:
    """Builds the application from its settings."""
    return _compose(args, listens=False)


def build_one_machine(args: Settings) -> Application:
    """Builds the application of `mrp-serve serve`: one ingress listens itself, several are behind a proxy."""
    return _compose(args, listens=args.ingress_listens)


def _compose(args: Settings, *, listens: bool) -> Application:
    """The deployments, bound to each other. `listens`: the ingress takes connections itself."""
    if args.device == "auto" and wants_gpu(args.device):
        args = args.model_copy(update={"device": "cuda"})  # the number of slots depends on the device
    # A replica that is being replaced finishes its requests.
    stopping: Any = {"graceful_shutdown_timeout_s": args.request_timeout_s, "graceful_shutdown_wait_loop_s": 0.5}
    ranks = args.tensor_parallel_size
    need = {"num_cpus": ranks, "num_gpus": ranks if wants_gpu(args.device) else 0}
    has_room = _room_for_one_more(args, {"CPU": need["num_cpus"], "GPU": need["num_gpus"]})
    generator: Any = serve.deployment(
        GeneratorDeployment,
        name=GENERATOR,
        **_replicas(args),
        ray_actor_options=need,
        max_ongoing_requests=_CONTROL_CALLS * args.api_server_count,
        health_check_period_s=_HEALTH_CHECK_S,
        health_check_timeout_s=HANGS_S,
        max_surge_percent=_SURGE_PERCENT if has_room else 0,
        **stopping,
    )
    ingress: Any = serve.deployment(
        IngressDeployment,
        name="Ingress",
        **_ingresses(args),  # Serve spreads them over the nodes that it has when it starts them
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=_INGRESS_REQUESTS,
        health_check_period_s=_HEALTH_CHECK_S,
        max_surge_percent=_SURGE_PERCENT,
        **stopping,
    )
    replicas = generator.bind(args)
    trainer = () if args.online_mrp_dir is None else (_trainer().bind(args, replicas),)
    application: Application = ingress.bind(args, replicas, listens, *trainer)
    return application


def _trainer() -> Any:
    """The deployment that lets MRP learn. It takes idle time of a CPU; a deployment file may give it a GPU."""
    from training.deployment import TrainerDeployment

    return serve.deployment(TrainerDeployment, name="MrpTrainer", num_replicas=1, ray_actor_options={"num_cpus": 0})


def _replicas(args: Settings) -> dict[str, Any]:
    """The number of replicas of the model. With a minimum of 0, one is started first to show that it works."""
    if not args.autoscaled:
        return {"num_replicas": args.num_replicas}
    return {
        "autoscaling_config": _autoscaling(
            min_replicas=args.num_replicas,
            max_replicas=args.max_num_replicas,
            initial_replicas=None if args.num_replicas else 1,
            upscale_delay_s=UPSCALE_DELAY_S,
            downscale_delay_s=DOWNSCALE_DELAY_S,
        )
    }


def _ingresses(args: Settings) -> dict[str, Any]:
    """The fixed number of ingresses. Serve reads reports of autoscaled deployments only, so both bounds are equal."""
    if not args.autoscaled:
        return {"num_replicas": args.api_server_count}
    return {"autoscaling_config": _autoscaling(min_replicas=args.api_server_count, max_replicas=args.api_server_count)}


def _autoscaling(**options: Any) -> AutoscalingConfig:
    with warnings.catch_warnings():
        # Ray calls metrics_interval_s deprecated. Ray 2.60 does not read the variables that it names instead.
        warnings.simplefilter("ignore", DeprecationWarning)
        return AutoscalingConfig(
            policy=AutoscalingPolicy(policy_function=_POLICY),
            metrics_interval_s=_REPORT_EVERY_S,
            look_back_period_s=_LOOK_BACK_S,
            **options,
        )


def _room_for_one_more(args: Settings, need: Mapping[str, int]) -> bool:
    """Whether an update can start a new replica before an old one stops. If not, Serve would wait for ever.

    `need`: the resources of a replica. Free slots count, and those that the replicas of this service have.
    Nodes that do not exist yet do not count: Ray does not tell how many an autoscaler would add.
    """
    if not ray.is_initialized():
        return True
    free, all_slots = (
        sum(min(int(node.get(unit, 0) // number) for unit, number in need.items() if number) for node in nodes.values())
        for nodes in (available_resources_per_node(), total_resources_per_node())
    )
    running = sum(f"#{GENERATOR}#" in actor["name"] for actor in list_named_actors(all_namespaces=True))
    target = max(args.num_replicas, running) if args.autoscaled else args.num_replicas
    return free + min(running, all_slots - free) > target


def wants_gpu(device: str) -> bool:
    """Whether a replica reserves a GPU. With `auto` it does if the cluster (without one: this machine) has any."""
    if device != "auto":
        return device.startswith("cuda")
    if ray.is_initialized():
        return bool(ray.cluster_resources().get("GPU"))
    import torch

    return torch.cuda.is_available()
