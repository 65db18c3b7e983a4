"""Tunes Python's lock and garbage collector, so that an event loop responds beside an engine's thread.

The replica calls it once, when its checkpoint is loaded. `benchmarks/host.py` measures the gain.
"""

from __future__ import annotations

import gc
import sys

#: Seconds after which a thread hands Python's lock to a waiting one. Python's own value is 5 ms, and an event loop that
#: passes a message on waits for the lock several times.
_SWITCH_S = 0.001
#: Collections of the middle generation for a full one. Python's own value is 10: some twenty seconds of 128 requests.
_RARELY = 100


def tune_interpreter() -> None:
    """Shortens how long other threads wait for Python's lock, in this process, for good.

    A full garbage collection holds the lock and looks at every object. Libraries and checkpoint have half a million
    objects: 70 ms. They stay for good, so collections leave out all present objects. Requests have some ten thousand
    objects: 8 ms. So full collections are rare.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _RARELY)
