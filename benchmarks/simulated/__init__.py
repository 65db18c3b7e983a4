"""The engine in simulated worlds: plans beside each other without a device, on a clock that no other work disturbs.

Engine, scheduler, policies and draft planner are the product's own. The network is a function of context and state
(`network.py`). The clock has a host and a device (`clock.py`, `runner.py`), so a step that begins ahead hides the
host's work, and a step in turns pays for it. `worlds.py` has the worlds, `users.py` the users, `play.py` plays plans.

Not simulated: the host's time of searches whose drafts are not verified, the choice of drafts among candidates,
memory that is short, grammars and penalties, sampling (all answers are greedy, and end by their
length), the mode `edit`, HTTP, and work of other processes on the same cores. Messages are a part of a step's time.
"""
