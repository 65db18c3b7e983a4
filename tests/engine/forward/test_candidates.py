"""Drafts chosen from a few candidates: the output is the same, without computing the whole head."""

import random

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from service.decode.block import MASKED, Block
from service.decode.modes import Speculative
from service.engine import Completion, Engine, EngineConfig, GenerationRequest, SamplingParams
from service.engine.forward.logits_sampler import choose_tokens
from service.engine.forward.model_forward import ExecutionConfig
from service.engine.forward.rows import Candidates, Row
from service.engine.forward.runner import ModelRunner
from service.model import Checkpoint, LoadOptions, load_checkpoint
from tests.engine.forward.sampled import Position, batch_of
from tests.engine.helpers import random_requests, request_of
from tests.tiny import GOLDEN, tiny_checkpoint

MASK = 3
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.7, seed=5),
    SamplingParams(temperature=1.2, top_k=4, top_p=0.8, seed=6),
)


def read(checkpoint: Checkpoint, requests: list[GenerationRequest], candidates: int | None) -> list[Completion]:
    return Engine(checkpoint, EngineConfig(draft_candidates=candidates, kv_cache_tokens=4096)).generate(requests)


def test_candidates_are_chosen_from_as_if_no_other_token_were_likely() -> None:
    torch.manual_seed(0)
    logits, reads = torch.randn(60, 50), batch_of(*(Position(SAMPLINGS[p % 3], p, p % 3) for p in range(60)))
    choices = torch.tensor([token for token in range(50) if token != MASK])
    candidates = torch.stack([choices[torch.randperm(49)[:12]] for _ in range(60)])
    only = torch.full_like(logits, -torch.inf).scatter(1, candidates, logits.gather(1, candidates))
    alone = Candidates(candidates, torch.full((60,), -torch.inf))
    tokens, confidences, _ = choose_tokens(logits.gather(1, candidates), reads, MASK, alone)
    wanted_tokens, wanted, _ = choose_tokens(only, reads, MASK)
    assert tokens.tolist() == wanted_tokens.tolist()
    torch.testing.assert_close(confidences, wanted)


@pytest.mark.parametrize("temperature", [0.0, 0.01, 0.1, 0.7, 1.0, 1.2])
def test_their_confidences_are_those_of_the_whole_vocabulary(
    temperature: float, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts read where the backbone has just read: the hidden states are the same, so the probabilities are."""
    checkpoint = load_checkpoint(GOLDEN / "sdar-mrp-random-a", LoadOptions(dtype=torch.float64))
    runner = ModelRunner(checkpoint, 8, num_candidates=32, execution=ExecutionConfig(attention))
    size = checkpoint.config.block_size
    sampling = SamplingParams(temperature=temperature, seed=4)
    row = Row(Block((MASKED,) * size), 0, [0], writes_kv=False, sampling=sampling, drafts=True)
    (whole,) = runner.begin("backbone", [row])()
    monkeypatch.setattr(checkpoint.mrp, "forward", lambda embedded, anchors, *_: anchors)
    (listed,) = runner.begin("mrp", [replace(row, anchor=whole.handle)])()
    assert [(pick.position, pick.token) for pick in listed.picks] == [
        (pick.position, pick.token) for pick in whole.picks
    ]
    wanted = [pick.confidence for pick in whole.picks]
    assert [pick.confidence for pick in listed.picks] == pytest.approx(wanted, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("candidates", [1, 3, 20])
def test_candidates_do_not_change_the_output(candidates: int) -> None:
    checkpoint = tiny_checkpoint(2, block_size=4)
    requests = random_requests(random.Random(candidates), checkpoint, 24)
    whole, few = (read(checkpoint, requests, count) for count in (0, candidates))
    assert [completion.token_ids for completion in few] == [completion.token_ids for completion in whole]
    assert [completion.stats.remasked for completion in few] == [completion.stats.remasked for completion in whole]
    assert sum(completion.stats.drafts_proposed for completion in few) > 0


def test_the_head_is_multiplied_for_what_is_verified_only(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = load_checkpoint(GOLDEN / "sdar-mrp-random-a")
    logits, reads = checkpoint.backbone.logits, list[int]()

    def counted(hidden: Tensor) -> Tensor:
        reads.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(checkpoint.backbone, "logits", counted)
    drafted = [request_of("s", [5, 6, 7], Speculative(3), 16)]
    for candidates in (0, 8):
        reads.clear()
        [done] = read(checkpoint, drafted, candidates)
        forwards = done.stats.forwards
        backbone = forwards.denoise + forwards.verify
        assert forwards.mrp > 0
        assert len(reads) == (backbone if candidates else backbone + forwards.mrp)
