"""Reinforcement learning with a running service: `python -m training.rl --url URL --out DIR`; the key is in ADMIN_KEY.

The service answers the demo's problems, several times each. The demo's checker gives a reward of 0 or 1. One update of
the backbone follows, and the service loads the new weights. Rollouts by `speculative` have the distribution of
`static`, so they need no correction.

The likelihood of an answer is the product over its steps: a step's tokens in the state before that step. The service's
step map says which tokens belong to a step. It leaves out tokens behind the stop token. In 400 answers of `static` to
the demo's problems none of them stood while the answer was filled.
Sources: TraceRL (arXiv 2509.06949) for the likelihood of a trajectory, GRPO (arXiv 2402.03300) for the advantage:
an answer's reward less the mean reward of its problem. Every answer is used for one update, so no ratio is clipped.
"""

import argparse
import json
import os
import random
import shutil
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import torch
from tokenizers import Tokenizer
from torch import Tensor

from service.demo import CHECKPOINT, check, heldout_problems
from service.model import Backbone, Mrp, load_checkpoint, save_checkpoint
from training.attention import BlockAttention, DenseAttention
from training.batch import Batch
from training.demo import tasks
from training.demo.mrp import PHASES
from training.demo.tokenizer import END, MASK, control, encode_prompt
from training.layout import Layout
from training.lessons import Objective, Teacher
from training.optim import Optimiser, Schedule
from training.rollout import backbone_logits
from training.trainer import Trainer

_CONCURRENCY = 32
#: answers of one layout that share a forward
_TOGETHER = 16
_NEVER = 2**15


@dataclass(frozen=True, slots=True)
class Rollout:
    """An answer of the service. `advantage`: the reward less the mean reward of the problem.

    `tokens`: the answer, with its stop token. `steps`: the step of the plain mode that revealed each token.
    """

    prompt: list[int]
    tokens: list[int]
    steps: list[int]
    advantage: float


class Service:
    """The running service. `mode`: the mode of rollouts, with its knobs."""

    def __init__(self, url: str, admin_key: str, mode: dict[str, Any], temperature: float) -> None:
        self._client = httpx.Client(base_url=url, timeout=600, trust_env=False)  # no proxy between trainer and service
        self._admin, self._mode, self._temperature = {"Authorization": f"Bearer {admin_key}"}, mode, temperature
        self._threads = ThreadPoolExecutor(_CONCURRENCY)

    def sample(self, prompts: Sequence[list[int]], samples: int, seed: int) -> list[dict[str, Any]]:
        """`samples` answers to each prompt, one prompt after the other. The seeds follow from `seed`."""
        rng = random.Random(seed)
        bodies = [
            {
                "prompt_token_ids": prompt,
                "n": samples,
                "temperature": self._temperature,
                "seed": rng.randrange(2**31),
                "return_step_map": True,
                **self._mode,
            }
            for prompt in prompts
        ]
        return [answer for several in self._threads.map(self._generate, bodies) for answer in several["choices"]]

    def accuracy(self, count: int) -> float:
        """The share of held-out problems that `static` answers right, without sampling."""
        problems = heldout_problems(count)
        bodies = [{"messages": [{"role": "user", "content": each.prompt}], "mode": "static"} for each in problems]
        answers = self._threads.map(self._generate, bodies)
        return fmean(each.check(answer["text"]) for each, answer in zip(problems, answers, strict=True))

    def update(self, folder: Path, version: int) -> None:
        """Loads the weights in a folder. Later answers come from them."""
        body = {"model": str(folder.resolve()), "version": version}
        self._client.post("/admin/weights", json=body, headers=self._admin).raise_for_status()

    def version(self) -> int:
        """The version of the present weights."""
        answer = self._client.get("/admin/weights", headers=self._admin).raise_for_status()
        return int(answer.json()["version"])

    def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._client.post("/generate", json=body).raise_for_status().json()
        return answer


class Learner:
    """The policy, and MRP beside it. `mrp_updates`: MRP's updates for each update of the policy, 0: MRP stays."""

    def __init__(self, folder: Path, rate: float, mrp_updates: int) -> None:
        checkpoint = load_checkpoint(folder)
        self._raw, self.backbone, self.mrp = dict(checkpoint.raw), checkpoint.backbone, checkpoint.mrp
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._mask, self._end = control(self.tokenizer, MASK), control(self.tokenizer, END)
        self.backbone.requires_grad_(requires_grad=True)
        # The rate is constant after the warm-up.
        self._optimiser = Optimiser(self.backbone.named_parameters(), Schedule(rate, warmup=5, floor=1.0))
        self._mrp_updates, self._mrp_trainer = mrp_updates, self._trainer(self.mrp) if mrp_updates else None

    def learn(self, rollouts: Sequence[Rollout], temperature: float) -> None:
        """One update of the policy, then MRP's updates on the same answers."""
        useful = [rollout for rollout in rollouts if rollout.advantage]
        tokens = sum(len(rollout.tokens) for rollout in rollouts)
        self._optimiser.forget()
        for batch, ranks, group in self.batches(useful):
            advantages = torch.tensor([rollout.advantage for rollout in group])
            likelihoods = log_likelihoods(self.backbone, batch, ranks, temperature)
            (-(likelihoods * advantages).sum() / tokens).backward()
        if useful:
            self._optimiser.update(share=0.0)
        if self._mrp_trainer is not None:
            batches = [batch for batch, _, _ in self.batches(rollouts)]
            rounds = ([batch] for batch in batches[: self._mrp_updates])
            self._mrp_trainer.run(rounds, _Constant(), lambda _: None)

    def save(self, folder: Path) -> None:
        """Writes the checkpoint that the service loads."""
        save_checkpoint(folder, self._raw, deepcopy(self.backbone), self.mrp)

    def batches(self, rollouts: Iterable[Rollout]) -> Iterator[tuple[Batch, Tensor, list[Rollout]]]:
        """The rollouts in groups of one layout, as a batch with its ranks."""
        groups, block = defaultdict[Layout, list[Rollout]](list), self._raw["block_size"]
        for rollout in rollouts:
            first = len(rollout.prompt) // block * block
            length = -(-(len(rollout.prompt) + len(rollout.tokens)) // block) * block
            groups[Layout(length, first, block)].append(rollout)
        for layout, group in groups.items():
            for start in range(0, len(group), _TOGETHER):
                part = group[start : start + _TOGETHER]
                yield *batch_of(part, layout, self._mask), part

    def _trainer(self, mrp: Mrp | None) -> Trainer:
        if mrp is None:
            raise SystemExit("training.rl: the checkpoint has no MRP module that could be trained")
        mrp.requires_grad_(requires_grad=True)
        optimiser = Optimiser(mrp.named_parameters(), Schedule(1e-3, floor=1.0))
        teacher = Teacher((self.backbone, mrp), Objective(PHASES[-1:]), self._end)
        return Trainer(teacher, optimiser)


class _Constant:
    """The progress of a training without an end."""

    share = 0.99


def batch_of(rollouts: Sequence[Rollout], layout: Layout, mask_id: int) -> tuple[Batch, Tensor]:
    """Rollouts of one layout as a batch, and the rank of each position's step within its block `[B, N]`.

    The rank of the prompt's positions is -1. Positions behind the stop token have `_NEVER`, and are the batch's tail.
    """
    tokens = torch.full((len(rollouts), layout.length), mask_id)
    steps = torch.full((len(rollouts), layout.length), _NEVER)
    for row, rollout in enumerate(rollouts):
        sequence = rollout.prompt + rollout.tokens
        tokens[row, : len(sequence)] = torch.tensor(sequence)
        steps[row, : len(sequence)] = torch.tensor([-1] * len(rollout.prompt) + rollout.steps)
    ranks = steps[:, layout.first :].unflatten(1, (layout.blocks, layout.block))
    for block in ranks.flatten(0, 1):
        answer = (block >= 0) & (block < _NEVER)
        block[answer] = block[answer].unique(return_inverse=True)[1]
    ranks = ranks.flatten(1)
    return Batch(layout, tokens, (ranks >= 0) & (ranks < _NEVER), ranks == _NEVER, mask_id), ranks


def log_likelihoods(backbone: Backbone, batch: Batch, ranks: Tensor, temperature: float) -> Tensor:
    """The log-likelihood of each row's answer along its trajectory `[B]`. `ranks`: as of `batch_of`."""
    layout = batch.layout
    copies = int(ranks[ranks < _NEVER].max()) + 1
    clean = DenseAttention(layout.clean_mask)
    backbone(batch.clean, layout.clean_positions, clean)
    numbers = torch.arange(copies)[:, None, None]
    states = torch.where(ranks < numbers, batch.truth, batch.mask_id)  # [copies, B, N]
    attend = BlockAttention(layout.reads(copies), layout.block, clean.layers)
    flat = states.transpose(0, 1).flatten(1)
    hidden = backbone(flat, layout.positions(copies), attend).unflatten(1, (copies, layout.noisy)).transpose(0, 1)
    where = ranks == numbers
    logits = backbone_logits(backbone, hidden[where], batch.mask_id) / temperature
    tokens, rows = batch.truth.expand_as(where)[where], where.nonzero()[:, 1]
    each = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    return torch.zeros(len(ranks)).index_add(0, rows, each)


def train(service: Service, learner: Learner, options: argparse.Namespace) -> None:
    """All updates, with a line of numbers for each in `OUT/curve.jsonl`."""
    rng, out = random.Random(options.seed), Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    version = service.version()
    for update in range(options.updates + 1):
        line: dict[str, Any] = {"update": update, "mode": options.mode}
        if update % options.judge_every == 0:
            line["accuracy"] = service.accuracy(options.judged)
        if update < options.updates:
            folder = out / f"weights-{update + 1}"
            line |= _update(service, learner, options, rng)
            line["publish_s"] = _seconds(partial(learner.save, folder))
            line["load_s"] = _seconds(partial(service.update, folder, version + update + 1))
            shutil.rmtree(out / f"weights-{update}", ignore_errors=True)
        print(json.dumps(line), flush=True)
        with (out / "curve.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _update(service: Service, learner: Learner, options: argparse.Namespace, rng: random.Random) -> dict[str, Any]:
    """One round: rollouts, rewards, an update. Returns its numbers."""
    drawn = [tasks.draw(rng).prompt for _ in range(options.prompts)]
    prompts = [encode_prompt(learner.tokenizer, prompt) for prompt in drawn]
    start = time.perf_counter()
    answers = service.sample(prompts, options.samples, rng.randrange(2**31))
    sampled = time.perf_counter()
    rewards = [float(check(drawn[index // options.samples], each["text"])) for index, each in enumerate(answers)]
    learner.learn(rollouts_of(prompts, answers, rewards, options.samples), options.temperature)
    forwards = sum(each["stats"]["forwards"]["denoise"] + each["stats"]["forwards"]["verify"] for each in answers)
    return {
        "reward": fmean(rewards),
        "tokens_per_forward": sum(len(each["token_ids"]) for each in answers) / forwards,
        "rollout_s": sampled - start,
        "train_s": time.perf_counter() - sampled,
    }


def rollouts_of(
    prompts: Sequence[list[int]], answers: Sequence[dict[str, Any]], rewards: Sequence[float], samples: int
) -> list[Rollout]:
    """The answers with their advantages. The answers to a prompt stand beside each other."""
    rollouts = []
    for index, (answer, reward) in enumerate(zip(answers, rewards, strict=True)):
        first, tokens, steps = index // samples * samples, list(answer["token_ids"]), list(answer["step_map"])
        if stop := answer["stop_token"]:
            tokens.append(stop["token_id"])
            steps.append(stop["step"])
        advantage = reward - fmean(rewards[first : first + samples])
        rollouts.append(Rollout(prompts[index // samples], tokens, steps, advantage))
    return rollouts


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--backbone", type=Path, default=CHECKPOINT, help="checkpoint that the service has loaded")
    parser.add_argument("--out", type=Path, required=True, help="folder for the numbers and the newest weights")
    parser.add_argument("--mode", default="speculative", choices=("static", "speculative"), help="mode of rollouts")
    parser.add_argument("--mrp-steps", type=int, help="MRP's steps of rollouts; default: the service chooses")
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--prompts", type=int, default=16, help="problems of an update")
    parser.add_argument("--samples", type=int, default=8, help="answers to each problem")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--mrp-updates", type=int, default=0, help="MRP's updates for each update of the backbone")
    parser.add_argument("--judged", type=int, default=300, help="held-out problems of a judgement")
    parser.add_argument("--judge-every", type=int, default=10, help="updates between two judgements")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Mismatch dtype")
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    mode = {"mode": options.mode} | ({"mrp_steps": options.mrp_steps} if options.mrp_steps else {})
    service = Service(options.url, os.environ.get("ADMIN_KEY", ""), mode, options.temperature)
    train(service, Learner(options.backbone, options.rate, options.mrp_updates), options)


def _seconds(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
