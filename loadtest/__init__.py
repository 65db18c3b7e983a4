"""Load tests and chaos scripts, which use a running service from outside and check its invariants."""

import os

# Clients obey the proxies of the environment for this machine, too, unless it is excepted.
_EXCEPTED = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
os.environ["no_proxy"] = ",".join(filter(None, (_EXCEPTED, "127.0.0.1", "localhost", "::1")))
