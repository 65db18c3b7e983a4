"""The target number of replicas: the sum of the numbers that the ingresses report every second.

Serve's controller calls `deployment_policy` for each of the two deployments (`app.py`), or `policy` if a Serve config
names `service.hooks:autoscaling_policy`. This module runs in the controller's process and must not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

#: the deployment that is scaled, and the name of the number that ingresses report
GENERATOR = "Generator"
WANTED = "replicas_wanted"

#: seconds after which the report of an ingress is too old to use
STALE_S = 15.0


#: application -> its deployments, as Serve has shown them last: the two calls of `deployment_policy` share it
_deployments: dict[str | None, dict[object, AutoscalingContext]] = {}


def deployment_policy(context: AutoscalingContext) -> tuple[float, dict[str, object]]:
    """The target number of replicas of one deployment. Serve calls this for both deployments in the same process."""
    contexts = _deployments.setdefault(context.app_name, {})
    contexts[context.deployment_id] = context
    decisions, _ = policy(contexts)
    return decisions.get(context.deployment_id, context.target_num_replicas), {}


def policy(
    contexts: Mapping[object, AutoscalingContext],
) -> tuple[dict[object, float], dict[object, dict[str, object]]]:
    """The target number of replicas by deployment. Deployments that are not named keep theirs. No state is kept."""
    wanted, complete = _wanted(contexts)
    decisions: dict[object, float] = {}
    for deployment, context in contexts.items():
        if context.deployment_name == GENERATOR:
            # Without the reports of all ingresses any replica may have requests, so none is stopped.
            minimum = 0.0 if complete else float(context.target_num_replicas)
            if context.target_num_replicas and not context.current_num_replicas:
                minimum = max(minimum, 1.0)  # lets the first replica start even if that takes longer than the delay
            decisions[deployment] = max(wanted, minimum)
    return decisions, {}


def _wanted(contexts: Mapping[object, AutoscalingContext]) -> tuple[float, bool]:
    total, complete = 0.0, True
    for context in contexts.values():
        if context.deployment_name == GENERATOR:
            continue
        reports = (context.raw_metrics or {}).get(WANTED, {})
        fresh = [
            reports[replica][-1].value
            for replica in context.running_replicas
            if reports.get(replica) and (context.current_time or 0.0) - reports[replica][-1].timestamp < STALE_S
        ]
        total += sum(fresh)
        complete &= 0 < len(fresh) >= max(len(context.running_replicas), context.target_num_replicas)
    return total, complete and any(context.deployment_name != GENERATOR for context in contexts.values())
