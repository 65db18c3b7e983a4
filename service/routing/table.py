"""The prefix table of one ingress: the replicas that have served each prefix. Drops the least recently used prefixes.

The table estimates the contents of the replicas' prefix caches. A replica may have evicted a prefix since.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

from service.routing.keys import PrefixKeys

#: the most replicas that are kept per key
MAX_HOLDERS = 16


class PrefixTable:
    """Key -> the replicas that have served it, the most recent one last. At most `size` keys."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._holders: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def longest(self, keys: PrefixKeys, least: float, alive: Container[str]) -> tuple[str, ...]:
        """The holders of the longest known prefix that covers at least the share `least` of the prompt."""
        for key, share in zip(reversed(keys.keys), reversed(keys.shares), strict=True):
            if share < least:
                break
            if holders := self.holders(key, alive):
                return holders
        return ()

    def holders(self, key: int, alive: Container[str]) -> tuple[str, ...]:
        """The replicas of a key that are in `alive`, the most recent one last."""
        return tuple(name for name in self._holders.get(key, ()) if name in alive)

    def record(self, keys: PrefixKeys, replica: str) -> None:
        """Notes that `replica` has taken a prompt. The longest prefixes are the first to be dropped again."""
        for key in reversed(keys.keys):
            self._add(key, replica)
        if keys.session is not None:
            self._add(keys.session, replica)
        while len(self._holders) > self._size:
            self._holders.popitem(last=False)

    def _add(self, key: int, replica: str) -> None:
        known = self._holders.get(key, ())
        if not known or known[-1] != replica:
            self._holders[key] = (*(name for name in known if name != replica), replica)[-MAX_HOLDERS:]
        self._holders.move_to_end(key)
