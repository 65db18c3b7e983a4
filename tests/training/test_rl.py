"""Reinforcement learning: likelihoods of trajectories, advantages, updates. The engine plays the service."""

import random

import pytest
import torch

from service.decode.modes import Dynamic, Sequential, Speculative, Static
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
    """Answers as the service gives them, with the log-likelihood of each."""
    end = frozenset(engine.model.eos_token_ids)
    requests = [
        GenerationRequest(str(seed), tuple(prompt), mode, SamplingParams(temperature, seed=seed), 128, end)
        for seed, prompt in enumerate(prompts)
    ]
    return [answer_of(completion) for completion in engine.generate(requests)]


def answer_of(completion):
    tokens, stop = completion.step_map[: len(completion.token_ids)], completion.step_map[len(completion.token_ids) :]
    return {
        "token_ids": [token.token for token in tokens],
        "step_map": [token.step for token in tokens],
        "stop_token": {"token_id": stop[0].token, "step": stop[0].step} if stop else None,
        "likelihood": sum(token.logprob for token in completion.step_map),
    }


@pytest.mark.parametrize(
    ("mode", "temperature"),
    [(Static(), 1.0), (Static(), 0.7), (Speculative(4), 0.7), (Sequential(2), 1.0), (Dynamic(0.7), 1.0)],
)
def test_the_likelihood_is_the_product_of_the_steps(engine, mode, temperature):
    learner = Learner(CHECKPOINT, 1e-4, 0)
    prompts = prompts_of(learner.tokenizer, 4)
    answers = answers_of(engine, prompts, mode, temperature)
    rollouts = rollouts_of(prompts, answers, [0.0] * 4, 1)
    expected = {id(rollout): answer["likelihood"] for rollout, answer in zip(rollouts, answers, strict=True)}
    groups = list(learner.batches(rollouts))
    assert sum(len(group) for _, _, group in groups) == 4
    for batch, ranks, group in groups:
        with torch.no_grad():
            likelihoods = log_likelihoods(learner.backbone, batch, ranks, temperature).tolist()
        assert likelihoods == pytest.approx([expected[id(rollout)] for rollout in group], abs=2e-3)


def test_drafts_do_not_change_the_rollouts(engine):
    prompts = prompts_of(Learner(CHECKPOINT, 1e-4, 0).tokenizer, 4)
    static, drafted = (answers_of(engine, prompts, mode, 1.0) for mode in (Static(), Speculative(4)))
    assert rollouts_of(prompts, static, [1.0] * 4, 2) == rollouts_of(prompts, drafted, [1.0] * 4, 2)


def test_an_advantage_is_the_reward_less_the_problems_mean():
    answer = {"token_ids": [9, 8], "step_map": [2, 1], "stop_token": {"token_id": 7, "step": 3}}
    rollouts = rollouts_of([[1], [2]], [answer, answer, answer, answer | {"stop_token": None}], [1.0, 0.0, 1.0, 1.0], 2)
    assert [(rollout.prompt, rollout.advantage) for rollout in rollouts] == [
        ([1], 0.5),
        ([1], -0.5),
        ([2], 0),
        ([2], 0),
    ]
    assert (rollouts[0].tokens, rollouts[0].steps) == ([9, 8, 7], [2, 1, 3])
    assert (rollouts[3].tokens, rollouts[3].steps) == ([9, 8], [2, 1])


def test_a_batch_holds_the_order_of_the_steps():
    rollout = Rollout([5, 6], [32, 31, 34, 33, 35], [2, 1, 4, 3, 3], 1.0)
    batch, ranks = batch_of([rollout], Layout(8, 0, 4), 99)
    assert batch.tokens.tolist() == [[5, 6, 32, 31, 34, 33, 35, 99]]
    assert ranks.tolist()[0][:7] == [-1, -1, 1, 0, 1, 0, 0]
    assert batch.tail.tolist() == [[False] * 7 + [True]]


def test_an_update_makes_rewarded_answers_likelier(engine, tmp_path):
    learner = Learner(CHECKPOINT, 3e-4, 1)
    prompts = prompts_of(learner.tokenizer, 1)
    answers = answers_of(engine, prompts * 3, Static(), 1.0)
    rollouts = rollouts_of(prompts, answers, [1.0, 0.0, 0.0], 3)

    @torch.no_grad()
    def rewarded():
        groups = learner.batches([rollout for rollout in rollouts if rollout.advantage > 0])
        return sum(float(log_likelihoods(learner.backbone, batch, ranks, 1.0).sum()) for batch, ranks, _ in groups)

    before, module = rewarded(), [weight.clone() for weight in learner.mrp.parameters()]
    for _ in range(3):
        learner.learn(rollouts, 1.0)
    assert rewarded() > before + 0.1
    assert any(not torch.equal(*pair) for pair in zip(module, learner.mrp.parameters(), strict=True)), "MRP learns, too"
    learner.save(tmp_path)
    assert load_checkpoint(tmp_path).mrp is not None
