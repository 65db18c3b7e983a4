"""Names that deployment files, Serve and Ray's environment variables import. They stay the same when modules move.

    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=service.hooks:proxy_middleware

`service.app:build` names `deployment_autoscaling_policy` itself. `autoscaling_policy` is for deployment files that name
a policy of the whole application. Serve's proxies and controller import this module, so it must not import torch.
"""

from typing import Any

from service.gateway.http import middleware
from service.rayserve.network import leave_proxies_out
from service.rayserve.scaling import deployment_policy as deployment_autoscaling_policy
from service.rayserve.scaling import policy as autoscaling_policy

__all__ = ["autoscaling_policy", "deployment_autoscaling_policy", "proxy_middleware"]


def proxy_middleware() -> list[Any]:
    """The middleware of one of Serve's proxies, which calls this before it asks an ingress."""
    leave_proxies_out()
    return middleware.proxy_middleware()
