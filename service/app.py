"""The Serve application: `service.app:build` is the import path of every deployment file.

    applications: [{name: mrp, import_path: "service.app:build", args: {model: …, num_replicas: 2}}]

`args` are settings (settings.py); an unknown one is an error. What Serve itself can set by deployment
(resources) is said in the file under `deployments: [{name: Generator, …}]`, the policy of scaling, which sees both
deployments, under `autoscaling_policy` of the application (rayserve/scaling.py).
"""

# No `from __future__ import annotations` here: Serve makes `Settings` of a deployment file's `args` only when the
# annotation of `build` is the class itself.
import logging
import math
import warnings
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from service.rayserve.deployments import GeneratorDeployment, IngressDeployment
from service.rayserve.scaling import GENERATOR
from service.rayserve.support import misfit
from service.settings import Settings

_log = logging.getLogger(__name__)

#: requests one ingress may have in hand; they wait there, nothing is computed
_INGRESS_REQUESTS = 4096
#: what an ingress asks the replicas themselves takes a place for a moment; a full replica must have one for that
_QUESTIONS = 4
#: how many times its share of all requests routers may give a replica: the ingresses count places of all together
_UNEVEN = 1.25
#: a dead replica is noticed by its requests at once, by Serve, which replaces it, after this
_HEALTH_CHECK_S = 1.0
#: a replica that does not answer a health check for so long three times in a row is killed
_HANGS_S = 6.0
#: replicas more than there should be while an update goes on, at least one
_SURGE_PERCENT = 20
#: by name, for Serve imports and pickles it
_PREFIX_ROUTER = "service.rayserve.prefix_router.PrefixRouter"
#: share of its places that a replica may be ahead of the others because of what it has cached
_SLACK = 1 / 16
#: how often Serve's controller is told what is wanted, and how far back it looks, which must be longer
_TOLD_EVERY_S = 1.0
_LOOK_BACK_S = 5.0
#: where no policy is named, Serve scales by requests: so many of a replica's places shall be taken
_PLACES_TAKEN = 0.8


def build(args: Settings) -> Application:
    """The application."""
    return compose(args, GeneratorDeployment)


def compose(args: Settings, replica: type) -> Application:
    """The two deployments, bound to each other. `replica`: the class behind the ingresses."""
    if args.device == "auto" and wants_gpu(args.device):
        args = args.model_copy(update={"device": "cuda"})  # how many places there are hangs on it
    generator: Any = serve.deployment(
        replica,
        name=GENERATOR,
        **_replicas(args),
        ray_actor_options={"num_cpus": 1, "num_gpus": 1 if wants_gpu(args.device) else 0},
        # The engine has the next requests at hand when places get free; the others wait in the ingresses, or in
        # Serve, which gives them to whichever replica, new ones included, has room first.
        max_ongoing_requests=math.ceil(_UNEVEN * args.places) + _QUESTIONS * args.num_ingresses,
        max_queued_requests=args.max_waiting + _INGRESS_REQUESTS,  # a backstop: the ingress refuses before
        health_check_period_s=_HEALTH_CHECK_S,
        health_check_timeout_s=_HANGS_S,
        max_surge_percent=_SURGE_PERCENT if args.num_replicas <= 1 or _room_for_one_more(args) else 0,
        request_router_config=_routing(args),
        **_stopping(args),
    )
    ingress: Any = serve.deployment(
        IngressDeployment,
        name="Ingress",
        **_ingresses(args),  # Serve spreads them over the nodes
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=_INGRESS_REQUESTS,
        health_check_period_s=_HEALTH_CHECK_S,
        max_surge_percent=_SURGE_PERCENT,
        **_stopping(args),
    )
    application: Application = ingress.bind(args, generator.bind(args))
    return application


def _replicas(args: Settings) -> dict[str, Any]:
    """How many replicas of the model. One is started first where there may be none, so that it is seen to work."""
    if not args.autoscaled:
        return {"num_replicas": args.num_replicas}
    return {
        "autoscaling_config": _autoscaling(
            min_replicas=args.num_replicas,
            max_replicas=args.most_replicas,
            initial_replicas=None if args.num_replicas else 1,
            target_ongoing_requests=_PLACES_TAKEN * args.places,
            upscale_delay_s=args.upscale_delay_s,
            downscale_delay_s=args.downscale_delay_s,
        )
    }


def _ingresses(args: Settings) -> dict[str, Any]:
    """How many ingresses: a fixed number. Serve asks only deployments that may be scaled for what they report."""
    if not args.autoscaled:
        return {"num_replicas": args.num_ingresses}
    return {"autoscaling_config": _autoscaling(min_replicas=args.num_ingresses, max_replicas=args.num_ingresses)}


def _autoscaling(**options: Any) -> AutoscalingConfig:
    with warnings.catch_warnings():
        # Ray calls metrics_interval_s deprecated; the variables it names instead are read by nothing in 2.60.
        warnings.simplefilter("ignore", DeprecationWarning)
        return AutoscalingConfig(metrics_interval_s=_TOLD_EVERY_S, look_back_period_s=_LOOK_BACK_S, **options)


def _stopping(args: Settings) -> dict[str, Any]:
    """A replica that makes way for another finishes its requests."""
    return {
        "graceful_shutdown_timeout_s": args.request_timeout_s,
        "graceful_shutdown_wait_loop_s": 0.5,
    }


def _routing(args: Settings) -> RequestRouterConfig:
    """How requests find their replica. What shares no cached prefix gains nothing by sharing a replica."""
    if args.routing == "load" or not args.prefix_cache:
        return RequestRouterConfig()
    if why := misfit():
        _log.warning("requests are routed by load, as with routing: load. %s", why)
        return RequestRouterConfig()
    slack = max(1, round(args.places * _SLACK))
    chosen: dict[str, Any] = {"request_router_class": _PREFIX_ROUTER, "request_router_kwargs": {"slack": slack}}
    return RequestRouterConfig(**chosen)


def _room_for_one_more(args: Settings) -> bool:
    """Whether an update can start a new replica before an old one stops. Else Serve would wait for room for ever."""
    if not ray.is_initialized():
        return True
    unit = "GPU" if wants_gpu(args.device) else "CPU"
    return bool(ray.cluster_resources().get(unit, 0) > args.num_replicas)


def wants_gpu(device: str) -> bool:
    """Whether a replica reserves a GPU. `auto` does where the cluster, or without one this machine, has any."""
    if device != "auto":
        return device.startswith("cuda")
    if ray.is_initialized():
        return bool(ray.cluster_resources().get("GPU"))
    import torch

    return torch.cuda.is_available()
