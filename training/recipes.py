"""The recipes of MRP's training: the defaults of `train-mrp`'s options, and what no option sets.

`default`: the options that drafted best on the demo and on code (dev/lab/training-log.md).

`published`: the MRP paper's (arXiv 2605.18817), as the official code trains the modules `sdar-*-mrp-3lyr`. Sources in
heavyball-research/multi-token-residual-prediction, commit 3f237b4:

- `scripts/train_sdar_mrp.sh`: one application (`mrp_steps=1`), one true token of every block revealed (`gt_topk=1`),
  windows of 4,096 tokens (`seq_len`), 16 windows an update (`global_bs`), the rate 1e-3 (`LR`) and
  `cosine_with_min_lr`, the loss KL(backbone ‖ MRP) at temperature 1 (`kd_diff_sum`).
- `sdar_4b_math_cot_full.yaml`: the final rate is a tenth of the peak (`min_lr_rate`), 3 % of the updates warm up
  (`warmup_ratio`).
- `loss_functions.py`, `modeling_sdar_mrp.py`: each example has one mask rate p, and a position weighs 1 / p.
- `config.json`: three layers.
- transformers' defaults: AdamW with betas .9 and .999 without decay, gradients up to a norm of 1.

Three things differ. A window is a batch of examples of similar length, which do not read each other in the published
windows either. The sum of the losses is divided by the sum of the weights; the published divisor, the number of answer
tokens minus the weights of the revealed ones, has the same expectation and can be 0 or less. The module begins with
copies of the backbone's last layers, as in the official v1.5 (`mrp_init_from_target_layers`); the older official code
begins with random weights (`mrp_init_std=0.2`).
"""

from dataclasses import dataclass
from typing import Literal

from training.lessons import Objective, Phase, phases_up_to
from training.losses import Weights
from training.optim import Matrices, Schedule

RecipeName = Literal["default", "published"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Values of `train-mrp`'s options by their names, and of fields that have no option.

    `batch_tokens`: the most tokens of a batch, None for no limit. `gradual`: the applications grow by phases.
    `inverse_rate`: as in `Noise`. `flat`, `floor`, `cosine`: as in `Schedule`. `warmup_share`, `longest_warmup`: the
    warm-up as a share of the updates, and its most updates.
    """

    layers: int = 3
    unroll: int = 2
    trajectories: float = 1.0
    next_pick: float = 4.0
    order: float = 0.25
    revision: float = 0.0
    reveals: int = 4
    copies: int = 4
    batch: int = 8
    batch_tokens: int | None = None
    accumulate: int = 1
    lr: float = 3e-3
    max_length: int = 2048
    window: int = 256
    gradual: bool = True
    inverse_rate: bool = False
    matrices: Matrices = "muon"
    warmup_share: float = 0.1
    longest_warmup: int = 150
    flat: float = 0.4
    floor: float = 0.01
    cosine: bool = False

    @property
    def objective(self) -> Objective:
        """The objective of the training."""
        weights = Weights(self.next_pick, self.order, self.revision)
        phases = phases_up_to(self.unroll, weights) if self.gradual else (Phase(0.0, self.unroll, weights),)
        return Objective(phases, self.trajectories, self.copies, reveals=self.reveals, inverse_rate=self.inverse_rate)

    def schedule(self, steps: int, warmup: int | None = None) -> Schedule:
        """The learning rate of `steps` updates. `warmup`: updates to the peak, None for the recipe's."""
        if warmup is None:
            warmup = min(self.longest_warmup, int(self.warmup_share * steps))
        return Schedule(self.lr, warmup, self.flat, self.floor, self.cosine)


#: a limit that no window of 4,096 tokens reaches: its smallest example is one block of 4
_ALL = 1024

RECIPES: dict[RecipeName, Recipe] = {
    "default": Recipe(),
    "published": Recipe(
        unroll=1,
        trajectories=0.0,
        next_pick=0.0,
        order=0.0,
        reveals=1,
        copies=1,
        batch=_ALL,
        batch_tokens=4096,
        accumulate=16,
        lr=1e-3,
        max_length=4096,
        window=4096,
        gradual=False,
        inverse_rate=True,
        matrices="adamw",
        warmup_share=0.03,
        longest_warmup=10**9,
        flat=0.03,
        floor=0.1,
        cosine=True,
    ),
}
