"""The deployments of an application, which Ray shows by private attributes only."""

from typing import Any

from ray.serve import Application, Deployment


def deployments(application: Application) -> tuple[Deployment, Deployment]:
    """The deployments of the replicas and of the ingresses."""
    ingress: Deployment = application._bound_deployment
    return ingress.init_args[1]._bound_deployment, ingress


def config_of(deployment: Deployment) -> Any:
    return deployment._deployment_config
