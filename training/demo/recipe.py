"""The whole recipe of the demo checkpoint: `python -m training.demo.recipe --out DIR`.

The stages are tokenizer, backbone and MRP. Each stage keeps its checkpoint and its clock in DIR, so an interrupted run
resumes there (with new optimiser state). The result is in DIR/demo. The environment variable
GLIBC_TUNABLES=glibc.malloc.hugetlb=1 makes it faster.
"""

from __future__ import annotations

import argparse
import json
import warnings
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from service.model import Backbone, Mrp, load_checkpoint, parse_config, save_checkpoint
from training.demo.backbone import new_backbone, train_backbone
from training.demo.batches import Batches
from training.demo.mrp import train_mrp
from training.demo.text import Windows, library_files
from training.demo.tokenizer import END, MASK, PAD, control, save_tokenizer, train_tokenizer
from training.module import new_mrp
from training.optim import Clock

MRP_SHARE, MRP_LAYERS = 0.35, 3
BACKBONE_BATCH, MRP_BATCH = 24, 16

#: The demo's size.
HIDDEN = {"hidden_size": 128, "head_dim": 32, "intermediate_size": 384}


@dataclass(frozen=True, slots=True)
class RecipeConfig:
    """The configuration of one run. `minutes`: of both trainings together. `mrp_share`: MRP's share of them."""

    out: Path
    minutes: float
    seed: int
    mrp_share: float = MRP_SHARE
    mrp_layers: int = MRP_LAYERS


def shape(tokenizer: Tokenizer, mrp_layers: int = 0) -> dict[str, Any]:
    """The demo's config.json."""
    end = control(tokenizer, END)
    return {
        "architectures": ["SDARMRPForCausalLM"],
        "model_type": "sdar",
        "attention_bias": False,
        "block_size": 16,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": control(tokenizer, PAD),
        "hidden_act": "silu",
        "mask_token_id": control(tokenizer, MASK),
        "max_position_embeddings": 1024,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "num_mrp_heads": min(1, mrp_layers),
        "num_nextn_predict_layers": mrp_layers,
        "mrp_default_steps": 4,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "use_sliding_window": False,
        "vocab_size": tokenizer.get_vocab_size(),
        **HIDDEN,
    }


class Stage:
    """The folder of a stage: its weights so far, and the seconds that it has used."""

    def __init__(self, folder: Path, raw: dict[str, Any], minutes: float) -> None:
        self._folder = folder
        self._raw = raw
        self._minutes = minutes
        self._progress = folder / "progress.json"
        spent = json.loads(self._progress.read_text())["seconds"] if self._progress.is_file() else 0.0
        self.started, self.clock = spent > 0, Clock(minutes, spent)

    def save(self, backbone: Backbone, mrp: Mrp | None = None) -> None:
        """Writes the checkpoint, then the clock."""
        save_checkpoint(self._folder, self._raw, backbone, mrp)
        self._progress.write_text(json.dumps({"seconds": self.clock.spent, "minutes": self._minutes}))


def backbone_stage(plan: RecipeConfig, tokenizer: Tokenizer) -> Backbone:
    """The trained backbone, loaded from the stage's folder if the stage is finished.

    Its weights are rounded to half precision, so that MRP learns from the weights that will be served.
    """
    raw, folder = shape(tokenizer), plan.out / "backbone"
    stage = Stage(folder, raw, plan.minutes * (1 - plan.mrp_share))
    backbone = new_backbone(parse_config(raw))
    if stage.started:
        backbone.load_state_dict(load_checkpoint(folder).backbone.state_dict())
    if stage.clock.share < 1:
        windows = Windows(tokenizer, library_files(heldout=False))
        batches = Batches(tokenizer, parse_config(raw).block_size, BACKBONE_BATCH, plan.seed, windows)
        train_backbone(backbone, batches, stage.clock, stage.save)
        stage.save(backbone)
    return backbone.half().float().eval().requires_grad_(False)


def mrp_stage(plan: RecipeConfig, tokenizer: Tokenizer, backbone: Backbone) -> Mrp:
    """The trained MRP module for this backbone, loaded from the stage's folder if the stage is finished."""
    raw, folder = shape(tokenizer, plan.mrp_layers), plan.out / "mrp"
    stage = Stage(folder, raw, plan.minutes * plan.mrp_share)
    mrp = new_mrp(parse_config(raw), backbone)
    if stage.started and (earlier := load_checkpoint(folder).mrp):
        mrp.load_state_dict(earlier.state_dict())
    if stage.clock.share < 1:
        windows = Windows(tokenizer, library_files(heldout=False))
        batches = Batches(tokenizer, parse_config(raw).block_size, MRP_BATCH, plan.seed + 1, windows)
        train_mrp((backbone, mrp), batches, stage.clock, stage.save, control(tokenizer, END))
        stage.save(backbone, mrp)
    return mrp.half().float().eval().requires_grad_(False)


def export(path: Path, raw: dict[str, Any], models: tuple[Backbone, Mrp | None], tokenizer: Tokenizer) -> None:
    """Writes a servable checkpoint: weights in half precision, config, tokenizer with chat template."""
    backbone, mrp = models
    save_checkpoint(path, raw, deepcopy(backbone).half(), deepcopy(mrp).half() if mrp else None)
    save_tokenizer(tokenizer, path)


def tokenizer_stage(plan: RecipeConfig) -> Tokenizer:
    """The run's tokenizer, trained on the first call."""
    file = plan.out / "tokenizer.json"
    if not file.is_file():
        save_tokenizer(train_tokenizer(plan.seed, texts=library_files(heldout=False)), plan.out)
    tokenizer: Tokenizer = Tokenizer.from_file(str(file))
    return tokenizer


def run(plan: RecipeConfig) -> None:
    """Runs all stages."""
    torch.manual_seed(plan.seed)
    tokenizer = tokenizer_stage(plan)
    backbone = backbone_stage(plan, tokenizer)
    mrp = mrp_stage(plan, tokenizer, backbone)
    export(plan.out / "demo", shape(tokenizer, plan.mrp_layers), (backbone, mrp), tokenizer)
    print(f"done: python -m benchmarks.evaluate --model {plan.out / 'demo'}", flush=True)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and the result")
    parser.add_argument("--minutes", type=float, default=58.0, help="training time of all stages together")
    parser.add_argument(
        "--mrp-share", type=float, default=MRP_SHARE, help="MRP's share of the minutes; the rest is for the backbone"
    )
    parser.add_argument("--mrp-layers", type=int, default=MRP_LAYERS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.filterwarnings("ignore", message="Mismatch dtype")
    torch.set_num_threads(given.threads)
    run(RecipeConfig(given.out, given.minutes, given.seed, given.mrp_share, given.mrp_layers))


if __name__ == "__main__":
    main()
