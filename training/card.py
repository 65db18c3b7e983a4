"""The model card of a trained module: README.md in its folder, as the hub and the playground read it."""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from service.model.files import display_name
from training.config import TrainingConfig
from training.conversations import Corpus, read_lines

CARD_FILE = "README.md"
#: prompts of the data that the card shows, and the most letters of one
_PROMPTS, _LETTERS = 3, 200

_CARD = """---
{matter}
---

# {name}

{base} with a module for Multi-token Residual Prediction (MRP), trained by `mrp-serve train-mrp`. The backbone's
weights are unchanged. `mrp-serve serve` decodes the backbone's text in fewer forwards with it.

```sh
mrp-serve serve {name}      # this folder, or OWNER/{name} on the hub
```

| | |
|---|---|
| backbone | {base} |
| module | {layers} of its layers, {kind}; {drafts} drafts in a row |
| data | {data}: {lines} lines, {train} examples to train on, {heldout} held out |
| training | {steps} updates of {batches} x {rows} examples, seed {seed} |
{scores}"""

_SCORES = """
## On held-out examples

*Zero* drafts by the backbone's last outputs, without the module. The numbers are those of training, not the server's.

| | KL to the backbone, by draft | drafts that hold | tokens a forward |
|---|---|---|---|
{rows}"""


def write_card(plan: TrainingConfig, corpus: Corpus, scores: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes the card into the result's folder. `scores`: those of heldout.json, empty without held-out examples."""
    base = display_name(Path(plan.source.backbone))
    hub_name = base.partition("@")[0] if "/" in base else None
    matter = {
        "library_name": "mrp-serve",
        "pipeline_tag": "text-generation",
        "base_model": hub_name,
        "tags": ["block-diffusion", "mrp"],
        "widget": list(islice(_prompts(plan.source.data), _PROMPTS)),
    }
    text = _CARD.format(
        # JSON is YAML, and the parts of training need no further package.
        matter="\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in matter.items() if value),
        name=plan.keeping.out.name,
        base=base,
        layers=plan.module.layers,
        kind="residual" if plan.module.residual else "direct",
        drafts=plan.drafts,
        data=plan.source.data.name,
        lines=corpus.lines,
        train=len(corpus.train),
        heldout=len(corpus.heldout),
        steps=plan.budget.steps,
        batches=plan.budget.batches,
        rows=plan.budget.rows,
        seed=plan.budget.seed,
        scores=_SCORES.format(rows="".join(map(_row, scores, scores.values()))) if scores else "",
    )
    (plan.keeping.out / CARD_FILE).write_text(text, encoding="utf-8")


def _row(name: str, score: Mapping[str, Any]) -> str:
    cells = [" ".join(f"{value:.3f}" for value in score[key]) for key in ("divergence", "accepted")]
    return f"| {'MRP' if name == 'mrp' else name} | {' | '.join(cells)} | {score['tokens_per_forward']:.3f} |\n"


def _prompts(data: Path) -> Iterator[dict[str, Any]]:
    """The short prompts of a file's lines, as a card's widget has them."""
    for _, line in read_lines(data):
        if isinstance(messages := line.get("messages"), list):
            users = [message["content"] for message in messages if message.get("role") == "user"]
            if users and len(users[0]) <= _LETTERS:
                yield {"messages": [{"role": "user", "content": users[0]}]}
        elif 0 < len(prompt := line.get("prompt") or "") <= _LETTERS:
            yield {"text": prompt}
