"""Reinforcement learning: likelihoods of trajectories, advantages, updates. The engine plays the service."""

import math
import random

import pytest
import torch

from service.decode.modes import Speculative, Static
from service.demo import CHECKPOINT
from service.engine import Engine, GenerationRequest, SamplingParams
from service.model import load_checkpoint
from training.demo import tasks
from training.demo.tokenizer import encode_prompt
from training.layout import Layout
from training.rl import Learner, Rollout, batch_of, log_likelihoods, rollouts_of


@pytest.fixture(scope="module")
def engine():
    return Engine(load_checkpoint(CHECKPOINT))


def prompts_of(tokenizer, count):
    rng = random.Random(5)
    return [encode_prompt(tokenizer, tasks.draw(rng).prompt) for _ in range(count)]


def answers_of(engine, prompts, mode, temperature):
    """Answers as the service gives them."""
    end = frozenset(engine.model.eos_token_ids)
    requests = [
        GenerationRequest(str(seed), tuple(prompt), mode, SamplingParams(temperature, seed=seed), 128, end)
        for seed, prompt in enumerate(prompts)
    ]
    return [
        {
            "trace": [
                {"block": block.index, "revealed": [pick[:3] for pick in step.revealed]}
                for block in completion.blocks
                for step in block.steps
            ]
        }
        for completion in engine.generate(requests)
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("mode", [Static(), Speculative(4)])
def test_the_likelihood_is_the_product_of_the_confidences(engine, mode, temperature):
    learner = Learner(CHECKPOINT, 1e-4, 0)
    prompts = prompts_of(learner.tokenizer, 6)
    answers = answers_of(engine, prompts, mode, temperature)
    rollouts = rollouts_of(prompts, answers, [0.0] * 6, 1)
    expected = {
        id(rollout): sum(math.log(confidence) for step in answer["trace"] for *_, confidence in step["revealed"])
        for rollout, answer in zip(rollouts, answers, strict=True)
    }
    groups = list(learner._batches(rollouts))
    assert sum(len(group) for _, _, group in groups) == 6
    for batch, ranks, group in groups:
        with torch.no_grad():
            likelihoods = log_likelihoods(learner.backbone, batch, ranks, temperature).tolist()
        assert likelihoods == pytest.approx([expected[id(rollout)] for rollout in group], abs=2e-3)


def test_drafts_do_not_change_the_trajectory(engine):
    prompts = prompts_of(Learner(CHECKPOINT, 1e-4, 0).tokenizer, 4)
    static, drafted = (answers_of(engine, prompts, mode, 1.0) for mode in (Static(), Speculative(4)))
    assert rollouts_of(prompts, static, [1.0] * 4, 2) == [
        Rollout(rollout.prompt, [[pick[:2] for pick in block] for block in rollout.blocks], 0.0)
        for rollout in rollouts_of(prompts, drafted, [1.0] * 4, 2)
    ]


def test_an_advantage_is_the_reward_less_the_problems_mean():
    answers = [{"trace": [{"block": 2, "revealed": [(3, 9, 0.5)]}]}] * 4
    rollouts = rollouts_of([[1], [2]], answers, [1.0, 0.0, 1.0, 1.0], 2)
    assert [(rollout.prompt, rollout.advantage) for rollout in rollouts] == [
        ([1], 0.5),
        ([1], -0.5),
        ([2], 0.0),
        ([2], 0.0),
    ]
    assert rollouts[0].blocks == [[(3, 9)]]


def test_a_batch_holds_the_order_of_the_steps():
    rollout = Rollout([5, 6], [[(3, 31), (2, 32)], [(1, 33), (0, 34)]], 1.0)
    batch, ranks = batch_of([rollout], Layout(8, 0, 4), 99)
    assert batch.tokens.tolist() == [[5, 6, 32, 31, 34, 33, 99, 99]]
    assert ranks.tolist()[0][:6] == [-1, -1, 1, 0, 1, 0]
    assert batch.tail.tolist() == [[False] * 6 + [True] * 2]


def test_an_update_makes_rewarded_answers_likelier(engine, tmp_path):
    learner = Learner(CHECKPOINT, 3e-4, 1)
    prompts = prompts_of(learner.tokenizer, 2)
    answers = answers_of(engine, [prompt for prompt in prompts for _ in range(3)], Static(), 1.0)
    rollouts = rollouts_of(prompts, answers, [1.0, 0.0, 0.0] * 2, 3)

    @torch.no_grad()
    def rewarded():
        groups = learner._batches([rollout for rollout in rollouts if rollout.advantage > 0])
        return sum(float(log_likelihoods(learner.backbone, batch, ranks, 1.0).sum()) for batch, ranks, _ in groups)

    before, module = rewarded(), [weight.clone() for weight in learner._mrp.parameters()]
    for _ in range(6):
        learner.learn(rollouts, 1.0)
    assert rewarded() > before + 0.1
    assert any(not torch.equal(*pair) for pair in zip(module, learner._mrp.parameters(), strict=True)), (
        "MRP learns, too"
    )
    learner.save(tmp_path)
    assert load_checkpoint(tmp_path).mrp is not None
