"""The worlds: an H100's and a CPU's times, extremes, loads, and seeded random worlds on which nobody tunes.

The device times of `_4B`, `_8B` and `_1_7B` are those of SDAR in bfloat16 in blocks of 8, inferred from an H100's rates
of `static`; `_CPU` has the shape of a CPU's times. Host times are from the card's host rows.
"""

from dataclasses import dataclass, field, replace

from benchmarks.simulated.network import Acceptance
from benchmarks.simulated.runner import DeviceTimes, HostTimes, Points
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Speculative, Static


@dataclass(frozen=True, slots=True)
class Load:
    """Users at once, until `answers` of their answers have ended; if that is 0, for `steps` steps of the engine."""

    users: int
    answers: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests. Whoever has an answer asks again after `gap` milliseconds.

    `prompt`, `new_tokens`: the least and the most tokens. `prefixes`: the number of prefixes that prompts share, of
    `prefix_tokens` tokens each; 0: prompts share nothing. `tenants`: the number of API keys; the first one sends half
    of the requests. `beside`: the mode of every other request, None: of none.
    """

    prompt: tuple[int, int] = (24, 72)
    new_tokens: tuple[int, int] = (16, 56)
    gap: float = 2.0
    prefixes: int = 0
    prefix_tokens: int = 0
    tenants: int = 1
    beside: DecodingMode | None = None


@dataclass(frozen=True, slots=True)
class World:
    """A machine, its checkpoint's block size and drafts, its users, and the fixed plans beside `static`."""

    name: str
    device: DeviceTimes
    host: HostTimes = field(default_factory=HostTimes)
    loads: tuple[Load, ...] = (Load(8, 150),)
    traffic: Traffic = field(default_factory=Traffic)
    block_size: int = 8
    acceptance: Acceptance = field(default_factory=Acceptance)
    fixed: tuple[DecodingMode, ...] = (Speculative(0, 1), Speculative(0, 4), Speculative(2, 6))

    @property
    def max_users(self) -> int:
        return max(load.users for load in self.loads)

    @property
    def max_tokens(self) -> int:
        """The most tokens of a request."""
        return self.traffic.prefix_tokens + self.traffic.prompt[1] + self.traffic.new_tokens[1]

    def lengthened(self, factor: int) -> "World":
        loads = tuple(Load(load.users, factor * load.answers, factor * load.steps) for load in self.loads)
        return replace(self, loads=loads)


# --- machines --------------------------------------------------------------------------------------------------

_8B = DeviceTimes(
    (
        (1, 6.62),
        (2, 6.65),
        (4, 6.7),
        (8, 6.95),
        (16, 7.5),
        (32, 9.0),
        (64, 14.6),
        (128, 27.0),
        (256, 53.0),
        (512, 105.0),
    ),
    ((1, 0.60), (8, 0.66), (32, 0.95), (64, 1.7), (128, 3.6), (256, 7.2), (512, 14.4)),
)
_4B = DeviceTimes(
    (
        (1, 4.05),
        (2, 4.08),
        (4, 4.15),
        (8, 4.35),
        (16, 4.75),
        (32, 5.9),
        (64, 8.7),
        (128, 15.5),
        (256, 30.0),
        (512, 59.0),
    ),
    ((1, 0.50), (8, 0.56), (32, 0.80), (64, 1.4), (128, 2.8), (256, 5.6), (512, 11.2)),
)
_1_7B = DeviceTimes(
    ((1, 2.0), (2, 2.02), (4, 2.05), (8, 2.15), (16, 2.35), (32, 2.9), (64, 4.1), (128, 7.0), (256, 13.4), (512, 26.0)),
    ((1, 0.40), (8, 0.45), (32, 0.62), (64, 1.0), (128, 1.9), (256, 3.8), (512, 7.6)),
)
_CPU = DeviceTimes(
    ((1, 1.0), (2, 1.3), (4, 1.9), (8, 3.0), (16, 5.2), (32, 9.8), (64, 19.0), (128, 37.5), (256, 74.0), (512, 148.0)),
    ((1, 0.35), (2, 0.42), (4, 0.6), (8, 0.9), (16, 1.5), (32, 2.8), (64, 5.3), (128, 10.4), (256, 20.8), (512, 41.0)),
    graphs=False,
    replays=False,
)
_CPU_HOST = HostTimes(launch=0.1, launch_row=0.005, read=0.02, read_row=0.002, step=0.1)
_NO_HOST = HostTimes(
    launch=0, launch_row=0, read=0, read_row=0, step=0, request=0, state=0, search=0, draft=0
)  # fmt: skip
_FREE: Points = ((1, 0.01), (512, 0.02))


def in_blocks(device: DeviceTimes, size: int) -> DeviceTimes:
    """A machine's times in blocks of `size` tokens, if they depend on the number of tokens alone."""
    networks = device.backbone, device.mrp
    backbone, mrp = (
        tuple((rows * 8 // size, time) for rows, time in points if rows * 8 >= size) for points in networks
    )
    return replace(device, backbone=backbone, mrp=mrp)


def trees(block_size: int) -> tuple[DecodingMode, ...]:
    """Fixed plans: a small tree and a larger one of the backbone's drafts, and one by MRP."""
    most = min(4, block_size - 1)
    return Speculative(0, 1), Speculative(0, most), Speculative(2, most if block_size < 8 else 6)


_ONE_USER, _MANY_USERS = (Load(1, 30),), (Load(32, 300),)
#: an H100's host, with the sampler of rows of more than 256 positions and of those with draft candidates
_HOST = HostTimes(sampler=0.3)
#: reading a page of 8 tokens of 4B's and of 8B's KV: 1.2 MB at 3 TB/s
_PAGE = 0.0004
#: drafts lose where many users decode, so one plan with them is enough
_ONE_PLAN: tuple[DecodingMode, ...] = (Speculative(0, 1),)
#: long prompts that join while others decode
_LONG_PROMPTS = Traffic(prompt=(1000, 4000), new_tokens=(64, 192))
_SHARED = Traffic(prefixes=4, prefix_tokens=512)

#: the worlds in which `auto` by the clock was designed
_OF_THE_DESIGN = (
    World("4B, 1 user", _4B, loads=_ONE_USER),
    World("4B, 8 users", _4B),
    World("4B, 32 users", _4B, loads=_MANY_USERS, fixed=_ONE_PLAN),
    World("8B, 1 user", _8B, loads=_ONE_USER),
    World("8B, 8 users", _8B),
    World("8B, 32 users", _8B, loads=_MANY_USERS, fixed=_ONE_PLAN),
    World("1.7B, 8 users", _1_7B),
    World("CPU, 1 user", _CPU, _CPU_HOST, loads=_ONE_USER),
    World("CPU, 8 users", _CPU, _CPU_HOST),
    World("8B, MRP free, 8 users", replace(_8B, mrp=_FREE)),
    World("8B, MRP as dear as a forward, 8 users", replace(_8B, mrp=_8B.backbone)),
    World("4B, no replays and 1 ms a wait, 8 users", replace(_4B, replays=False), HostTimes(wait=1.0)),
    World("4B, 5 ms a wait, 8 users", _4B, HostTimes(wait=5.0)),
    World("8B, no host at all, 8 users", _8B, _NO_HOST),
    World("4B, noise of 20 %, 8 users", replace(_4B, noise=0.2)),
    World(
        "4B, 1, 8, 32, 8 users one after the other",
        _4B,
        loads=(Load(1, 12), Load(8, 80), Load(32, 200), Load(8, 80)),
        fixed=(),
    ),
)


def _in_steps(*users: int) -> tuple[Load, ...]:
    """Loads of 200 steps each. Where users become fewer, the answers of the others end first."""
    return tuple(Load(count, steps=200) for count in users)


_FURTHER = (
    World("4B, 128 users", _4B, _HOST, (Load(128, 600),), fixed=_ONE_PLAN),
    World("8B, 128 users", _8B, _HOST, (Load(128, 600),), fixed=_ONE_PLAN),
    World("4B, blocks of 4, 8 users", in_blocks(_4B, 4), _HOST, block_size=4, fixed=trees(4)),
    World("8B, blocks of 4, 8 users", in_blocks(_8B, 4), _HOST, block_size=4, fixed=trees(4)),
    World("8B, blocks of 4, 32 users", in_blocks(_8B, 4), _HOST, _MANY_USERS, block_size=4, fixed=trees(4)),
    World("4B, blocks of 16, 8 users", in_blocks(_4B, 16), _HOST, block_size=16),
    World("8B, blocks of 16, 1 user", in_blocks(_8B, 16), _HOST, _ONE_USER, block_size=16),
    World("8B, blocks of 16, 8 users", in_blocks(_8B, 16), _HOST, block_size=16),
    World("4B, long prompts, 8 users", replace(_4B, page=_PAGE), _HOST, (Load(8, 80),), _LONG_PROMPTS),
    World("8B, long prompts, 2 users", replace(_8B, page=_PAGE), _HOST, (Load(2, 30),), _LONG_PROMPTS),
    World(
        "8B, long prompts, 32 users", replace(_8B, page=_PAGE), _HOST, (Load(32, 120),), _LONG_PROMPTS, fixed=_ONE_PLAN
    ),
    World("4B, shared prefixes, 8 users", _4B, _HOST, traffic=_SHARED),
    World("8B, shared prefixes, 32 users", _8B, _HOST, _MANY_USERS, _SHARED, fixed=_ONE_PLAN),
    World("4B, 4 API keys, 8 users", _4B, _HOST, traffic=Traffic(tenants=4)),
    World("8B, 2 API keys, long prompts, 8 users", _8B, _HOST, (Load(8, 80),), replace(_LONG_PROMPTS, tenants=2)),
    World("8B, 4 API keys, 32 users", _8B, _HOST, _MANY_USERS, Traffic(tenants=4), fixed=_ONE_PLAN),
    World("4B, half static, 8 users", _4B, _HOST, traffic=Traffic(beside=Static())),
    World("8B, half static, 2 users", _8B, _HOST, (Load(2, 50),), Traffic(beside=Static())),
    World("8B, half static, 8 users", _8B, _HOST, traffic=Traffic(beside=Static())),
    World("8B, half direct, 8 users", _8B, _HOST, traffic=Traffic(beside=Direct(1))),
    World("4B, half direct, 32 users", _4B, _HOST, _MANY_USERS, Traffic(beside=Direct(1)), fixed=_ONE_PLAN),
    World("4B, another load every 200 steps", _4B, _HOST, _in_steps(8, 32, 2, 16, 64, 4)),
    World("8B, another load every 200 steps", _8B, _HOST, _in_steps(16, 1, 32, 4, 64, 8)),
    World("1.7B, another load every 200 steps", _1_7B, _HOST, _in_steps(4, 16, 1, 32, 8)),
    World("8B, 8 and 32 users in turn", _8B, _HOST, _in_steps(8, 32, 8, 32, 8, 32)),
)
WORLDS = (*_OF_THE_DESIGN, *_FURTHER)
