"""Golden decodes on the virtual device, and what else its tests share."""

import torch

from service.engine import EngineConfig
from service.model import LoadOptions, load_checkpoint
from tests.engine.test_golden import assert_golden, expected, requests
from tests.tiny import GOLDEN
from tests.vcuda.device import Counts, VirtualTensor

#: steps ahead and graphs: every branch of CUDA
ALL_ON = EngineConfig(attention="triton", async_scheduling=True, kv_cache_tokens=4096, max_rows=64)
#: the only waits that are allowed: a capture begins
CAPTURE = "begin of a capture"


def on_device(name, **options):
    """A golden checkpoint, or the checkpoint of a folder, on the device in float32. Loading does not count."""
    checkpoint = load_checkpoint(GOLDEN / name, LoadOptions(torch.float32, "cuda", **options))
    if VirtualTensor.device_mode is not None:
        VirtualTensor.device_mode.counts = Counts()
    return checkpoint


def golden(name, count=None):
    """Expected decodes and their requests: all, or `count` of each mode with the fewest forwards."""
    pairs = list(zip(expected(name), requests(name), strict=True))
    if count is not None:
        pairs.sort(key=lambda pair: pair[0]["backbone_denoise_forwards"])
        modes = {entry["mode"] for entry, _ in pairs}
        pairs = [pair for mode in sorted(modes) for pair in [p for p in pairs if p[0]["mode"] == mode][:count]]
    return [entry for entry, _ in pairs], [request for _, request in pairs]


def decode_golden(engine, name, count=None):
    entries, chosen = golden(name, count)
    for entry, done in zip(entries, engine.generate(chosen), strict=True):
        assert_golden(entry, done)


def waits(counts):
    return [wait for wait in counts.waits if not wait.startswith(CAPTURE)]


def steps(engine, device, submitted):
    for request in submitted:
        engine.submit(request)
    counts = []
    while engine.has_work:
        device.counts = Counts()
        engine.step()
        counts.append(device.counts)
    return counts
