"""The choice of the request that loses its KV pages: fair between tenants, by priority and age within a tenant.

The oldest running request never loses its pages, so that it ends and all others follow. Nor does one that only scores:
it takes no more pages, and ends soon.
"""

from collections import defaultdict
from collections.abc import Sequence

from service.engine.running_request import RunningRequest


def choose_victim(running: Sequence[RunningRequest]) -> RunningRequest | None:
    """The request that loses its pages: of the tenant with the most pages for its share the least urgent, the newest.

    `running`: the running requests, the oldest first. None if no request may lose its pages.
    """
    tenants, held = defaultdict[str, list[RunningRequest]](list), defaultdict[str, float](float)
    for number, candidate in enumerate(running):
        sharing = candidate.request.sharing
        held[sharing.tenant] += candidate.lease.num_own / sharing.tenant_share
        if number and candidate.grows:
            tenants[sharing.tenant].append(candidate)
    if not tenants:
        return None
    candidates = tenants[max(tenants, key=held.__getitem__)]
    return max(reversed(candidates), key=lambda candidate: candidate.request.sharing.priority)
