"""MRP learns from finished requests: samples come in, one short update at a time, a judgement, new weights.

It follows the backbone's own decodes, as `train-mrp` does, and starts from the served module. A trainer beside a
service calls it. It knows neither processes nor HTTP. Samples are in memory only, and none is logged.

The learning rate is constant, because the requests never end. An average of the last weights takes the place of its
fall: the average is what is judged and written.
"""

import contextlib
import math
import random
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from service.errors import SettingsError
from service.model import Checkpoint, Mrp
from training.batch import Batch
from training.conversations import Example, Limits, windows
from training.lessons import Objective, Phase, Teacher
from training.losses import Weights
from training.optim import Optimiser, Schedule, Steps
from training.publish import WEIGHTS_FILE, publish_mrp, stored_dtype
from training.rollout import roll_out
from training.simulate import Drafting, Yield, count_rows, drafts_met
from training.stream import Shape, Stream
from training.trainer import Report, Trainer

#: held-out requests, below which there is no judgement
_FEWEST = 24
#: standard errors that a better module must be ahead: chance alone is ahead so far once in 160 judgements
_SURE = 2.5
#: the gain that is worth an update, as a share of the served module's accepted drafts
_WORTHWHILE = 0.02
#: examples, of which one batch with similar shapes is drawn, for each of its rows
_POOL = 8
_AVERAGED = 0.98
#: how often each state of a batch is used: the decoding of the batch takes about as long as an update
_PASSES = 3
_WEIGHTS = Weights(next_pick=4.0, order=0.25, revision=0.5)


@dataclass(frozen=True, slots=True)
class Sample:
    """A finished request. `tokens`: those of the prompt, `prompt` in number, and of the answer.

    `owner`: the name of the API key.
    """

    tokens: Sequence[int]
    prompt: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class OnlineOptions:
    """The limits of an `OnlineTrainer`.

    `tokens`: kept in all, shared evenly by the owners. `held_out`: one sample in so many is judged, never trained on.
    `uses`: how often a window is trained on, about. `rows`, `batch_tokens`: the most windows and tokens of an update.
    `judged`: the windows of a judgement. `refusals`: judgements in a row that refuse the candidate, after which it
    begins again from the served module. `max_length`, `window`: as in `Limits`.
    """

    tokens: int = 2**18
    held_out: int = 8
    uses: int = 4
    rows: int = 16
    batch_tokens: int = 4096
    judged: int = 96
    refusals: int = 8
    rate: float = 2e-3
    max_length: int = 2048
    window: int = 256
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """Accepted drafts a forward on recent held-out requests, by the served module and by the candidate.

    `error`: the standard error of their difference. `samples`: the number of requests.
    """

    served: float
    candidate: float
    error: float
    samples: int

    @property
    def is_better(self) -> bool:
        """Whether the candidate is worth publishing.

        Both modules draft for the same requests, so the error is that of pairs. A wrong publication costs little: no
        draft changes an answer, and the next judgement compares with the module that it published.
        """
        margin = max(_SURE * self.error, _WORTHWHILE * self.served)
        return self.samples >= _FEWEST and self.candidate - self.served > margin


class OnlineTrainer:
    """Trains a copy of a checkpoint's MRP. The served module is the checkpoint's own.

    SettingsError for a checkpoint without MRP, and for one with quantized weights.
    """

    def __init__(self, checkpoint: Checkpoint, options: OnlineOptions | None = None) -> None:
        self._checkpoint, self._options = checkpoint, options or OnlineOptions()
        self._served, self._stored = _trainable(checkpoint), stored_dtype(checkpoint.path)
        config, limits = checkpoint.config, self._options
        block, device = config.block_size, checkpoint.device
        self._limits = Limits(block, min(limits.max_length, config.max_positions), limits.window)
        self._shape = Shape(
            limits.rows, block, int(config.mask_token_id == 0), config.mask_token_id, limits.batch_tokens,
            config.sub_block_size,
        )  # fmt: skip
        self._ends = torch.tensor(config.eos_token_ids or [-1], device=device)
        assert config.mrp is not None
        self._drafts = min(max(2, config.mrp.default_steps), block - 1)
        self._device = torch.device(device) if device.type != "cpu" else contextlib.nullcontext()
        self._samples = _Samples(self._limits, limits)
        self._random = random.Random(limits.seed)
        self._left = self._refused = 0
        self._judged: Mrp
        self.reset()

    def add(self, samples: Iterable[Sample]) -> None:
        """Takes finished requests. Those without an answer in `max_length` tokens are left out."""
        for sample in samples:
            self._left += self._options.uses * self._samples.add(sample)

    @property
    def is_ready(self) -> bool:
        """Whether there are requests for a judgement, and for an update some that were used less often than `uses`."""
        return self._left > 0 and self._samples.trained > 0 and self._samples.held_out >= _FEWEST

    def update(self) -> Report:
        """One short update, on a batch drawn from the kept requests. Its losses are those of the last part."""
        reports: list[Report] = []

        def after(report: Report) -> None:
            self._average.update_parameters(self._candidate)
            reports.append(report)

        with self._device:
            batch = self._draw()
            self._trainer.run([[batch]], Steps(1), after)
        self._left -= len(batch.tokens)
        return reports[-1]

    def judge(self) -> Judgement:
        """Compares the candidate, rounded as it would be written, with the served module."""
        self._judged = cast(Mrp, deepcopy(self._average.module)).to(self._stored)
        modules = self._served, deepcopy(self._judged).to(self._checkpoint.dtype).eval()
        with self._device, torch.no_grad():
            rows = [row for batch in self._held_out() for row in self._drafted(modules, batch)]
        judgement = _compare(rows)
        self._refused = 0 if judgement.is_better else self._refused + 1
        if self._refused >= self._options.refusals:
            self.reset()
        return judgement

    def write(self, folder: Path) -> None:
        """Writes MRP's weights as judged, for an update with `partial`: no text, no state of the training."""
        folder.mkdir(parents=True, exist_ok=True)
        models = self._checkpoint.backbone, self._judged
        publish_mrp(folder / WEIGHTS_FILE, self._checkpoint.config, models, self._stored)

    def adopt(self) -> None:
        """Tells that the judged candidate is served now. The training goes on with its state."""
        self._served.load_state_dict(self._judged.state_dict())

    def reset(self) -> None:
        """Begins again from the served module, after `refusals` or a version that was not taken. Samples are kept."""
        backbone = self._checkpoint.backbone
        self._candidate = deepcopy(self._served).float().train().requires_grad_()
        self._average = AveragedModel(self._candidate, multi_avg_fn=get_ema_multi_avg_fn(_AVERAGED))
        self._judged = deepcopy(self._served).to(self._stored)
        phase = Phase(0.0, self._drafts, _WEIGHTS)
        teacher = Teacher((backbone, self._candidate), Objective((phase,), passes=_PASSES), self._ends)
        optimiser = Optimiser(self._candidate.named_parameters(), Schedule(self._options.rate, warmup=20))
        self._trainer = Trainer(teacher, optimiser, self._options.seed)
        self._refused = 0

    def _draw(self) -> Batch:
        examples = self._samples.draw(self._random, _POOL * self._options.rows)
        return Stream(examples, self._shape, self._random.getrandbits(32)).batch(0)

    def _held_out(self) -> Iterator[Batch]:
        stream = Stream(self._samples.newest(self._options.judged), self._shape, self._options.seed)
        return map(stream.batch, range(stream.batches_per_epoch))

    def _drafted(self, modules: tuple[Mrp, Mrp], batch: Batch) -> Iterator[tuple[Yield, Yield]]:
        """The yield of both modules for each row."""
        backbone, drafting = self._checkpoint.backbone, Drafting(self._drafts)
        trajectory = roll_out(backbone, batch, self._ends)
        met = [drafts_met((backbone, mrp), trajectory, self._ends, drafting) for mrp in modules]
        served, candidate = (count_rows(each.cpu(), trajectory) for each in met)
        return zip(served, candidate, strict=True)


class _Samples:
    """The kept requests of every owner. `trained`, `held_out`: their numbers."""

    def __init__(self, limits: Limits, options: OnlineOptions) -> None:
        self._limits, self._options = limits, options
        self._owners: dict[str, tuple[_Ring, _Ring]] = {}
        self._counts: dict[str, int] = {}
        self._random = random.Random(options.seed)

    @property
    def trained(self) -> int:
        return sum(len(ring.requests) for ring, _ in self._owners.values())

    @property
    def held_out(self) -> int:
        return sum(len(ring.requests) for _, ring in self._owners.values())

    def add(self, sample: Sample) -> int:
        """Keeps a sample; the oldest of its owner go. Returns the windows to train on."""
        tokens = array("i", sample.tokens)
        parts = list(windows(tokens, [(sample.prompt, len(tokens))], self._limits))
        if not parts:
            return 0
        number = self._counts[sample.owner] = self._counts.get(sample.owner, -1) + 1
        train, held_out = self._owners.setdefault(sample.owner, (_Ring(), _Ring()))
        judged = number % self._options.held_out == self._options.held_out - 1
        if judged:
            held_out.add([self._random.choice(parts)])  # windows of one answer are alike: they would count twice
        else:
            train.add(parts)
        room = self._options.tokens // len(self._owners)
        for rings in self._owners.values():
            rings[1].trim(room // self._options.held_out)
            rings[0].trim(room - room // self._options.held_out)
        return 0 if judged else len(parts)

    def draw(self, rng: random.Random, count: int) -> list[Example]:
        groups = [windows for ring, _ in self._owners.values() for windows in ring.requests]
        return [rng.choice(rng.choice(groups)) for _ in range(count)]

    def newest(self, count: int) -> list[Example]:
        """The last held-out windows, in equal parts of the owners."""
        each = -(-count // len(self._owners))
        return [windows[0] for _, ring in self._owners.values() for windows in list(ring.requests)[-each:]]


class _Ring:
    """Samples as windows, the oldest first."""

    def __init__(self) -> None:
        self.requests: deque[list[Example]] = deque()
        self._tokens = 0

    def add(self, parts: list[Example]) -> None:
        self.requests.append(parts)
        self._tokens += len(parts[0].sequence)

    def trim(self, room: int) -> None:
        """Lets the oldest go until the rest has at most `room` tokens."""
        while self._tokens > room:
            self._tokens -= len(self.requests.popleft()[0].sequence)


def _trainable(checkpoint: Checkpoint) -> Mrp:
    """The checkpoint's MRP. SettingsError if it cannot be trained or written."""
    if checkpoint.mrp is None:
        raise SettingsError(f"{checkpoint.path} has no MRP, which could learn: `mrp-serve train-mrp` trains a new one")
    if checkpoint.config.quantization is not None:
        raise SettingsError(f"the weights are in {checkpoint.config.quantization}, MRP learns with wide weights only")
    return checkpoint.mrp


def _compare(rows: list[tuple[Yield, Yield]]) -> Judgement:
    """The judgement of pairs of yields. Its error is that of a difference of ratios, linearised row by row."""
    if not rows:
        return Judgement(0.0, 0.0, math.inf, 0)
    counts = torch.tensor([[(each.accepted, each.forwards) for each in pair] for pair in rows], dtype=torch.float64)
    accepted, forwards = counts.unbind(-1)  # [rows, 2]
    ratios = accepted.sum(0) / forwards.sum(0)
    each = (accepted - ratios * forwards) / forwards.sum(0)
    error = (each[:, 1] - each[:, 0]).square().sum().sqrt().item()
    served, candidate = ratios.tolist()
    return Judgement(served, candidate, error, len(rows))
