"""Names that deployment files and Ray's environment variables import. They stay the same when modules move.

    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=service.hooks:proxy_middleware
    autoscaling_policy: {policy_function: "service.hooks:autoscaling_policy"}

Serve's proxies and controller import this module, so it must not import torch.
"""

from service.gateway.proxied import proxy_middleware
from service.rayserve.scaling import policy as autoscaling_policy

__all__ = ["autoscaling_policy", "proxy_middleware"]
