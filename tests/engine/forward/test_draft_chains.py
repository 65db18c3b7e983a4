"""A chain of drafts on the device against the host's sampler and rules: by Triton's interpreter, or on CUDA."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from service.decode.block import MASKED, Block
from service.decode.rules import ConfidenceAbove, LeftToRight, LowestEntropy, TopConfidence
from service.engine import SamplingParams
from service.engine.forward.draft_chains import ChainBuffers, ChainTables, SentChain, chain_predictions
from service.engine.forward.draft_vocabulary import DraftVocabulary
from service.engine.forward.logits_sampler import sample
from service.engine.forward.rows import Anchor, Candidates, ForwardOutput, Row, tokens_and_positions
from service.engine.forward.sampling_batch import SamplingBatch
from service.model.transfer import PackedTables

MASK, VOCABULARY, HIDDEN, CANDIDATES, FORWARDS = 3, 90, 24, 11, 4
RULES = (TopConfidence(1), TopConfidence(2), ConfidenceAbove(0.2), LeftToRight(1), LowestEntropy(2.5), None)
SAMPLINGS = tuple(SamplingParams(temperature, seed=2**62 + 7) for temperature in (0.0, 0.7, 1.3))


def rows_of(length: int, anchor: Anchor, generator: np.random.Generator) -> list[Row]:
    """Rows with some masked positions, of each rule; the last one stores a finished block."""
    rows = []
    for number, rule in enumerate(RULES):
        tokens = np.where(generator.random(length) < 0.7, MASKED, 4).tolist()
        sampling = SAMPLINGS[number % len(SAMPLINGS)]
        row = Row(
            Block((*tokens[1:], MASKED)), number, (), writes_kv=False, sampling=sampling, entropy=True, drafts=True
        )
        rows.append(replace(row, anchor=anchor, rule=rule))
    return [*rows, replace(rows[0], state=Block((4,) * length), writes_kv=True, sampling=None, drafts=False, rule=None)]


@pytest.mark.parametrize("length", [1, 3, 8, 16])
def test_each_forward_of_a_chain_reveals_the_rules_picks(triton_device: str, length: int) -> None:
    torch.manual_seed(length)
    device, generator = torch.device(triton_device), np.random.default_rng(length)
    head = torch.randn(VOCABULARY, HIDDEN, device=device)
    tokens = torch.stack([torch.randperm(VOCABULARY - 4)[:CANDIDATES] + 4 for _ in range(length)]).to(device)
    candidates = Candidates(tokens, torch.randn(length, device=device))
    slots = generator.permutation(length)[None]
    anchor = Anchor(
        ForwardOutput(torch.zeros(1, length, HIDDEN, device=device), candidates, slots, np.ones(1, bool)), 0
    )
    rows = rows_of(length, anchor, generator)

    drafts, tables = DraftVocabulary.for_rows(rows, length, 0, MASK), PackedTables(device)
    host = ChainTables.of(rows, drafts)
    sent = SentChain(tables.add(host.params), tables.add(host.slots), host.candidates)
    states = tables.add(tokens_and_positions(rows, MASK)[0])
    tables.send()
    anchors = torch.zeros(len(rows), length, HIDDEN, device=device)
    chain = ChainBuffers.like(sent.params.tensor, host.candidates, anchors)
    chain.load(sent)
    rows_then = rows
    for number in range(FORWARDS):
        hidden = torch.randn(len(rows), length, HIDDEN, device=device)
        chain.reveal(hidden, states.tensor, head, MASK)
        assert torch.equal(chain.hidden[number], hidden)
        got = chain_predictions(rows, ForwardOutput(hidden), chain.values[number].cpu().numpy())
        batch = SamplingBatch.from_rows(rows_then, length)
        at = torch.from_numpy(slots[0, batch.position]).to(device)
        logits = torch.einsum("mh,mch->mc", hidden.flatten(0, 1)[batch.flat], head[candidates.tokens[at]])
        chosen = Candidates(candidates.tokens[at], candidates.other_weight[at])
        wanted = sample(logits, batch, MASK, chosen).cpu()
        following = list[Row]()
        for index, row in enumerate(rows_then):
            prediction, of_row = got[index].of_positions(row.state.masked), wanted[batch.row == index]
            assert list(prediction.tokens) == of_row[:, 0].contiguous().view(torch.int32).tolist()
            torch.testing.assert_close(torch.tensor(prediction.confidences), of_row[:, 1])
            if row.sampling is not None:
                torch.testing.assert_close(torch.tensor(prediction.entropies), of_row[:, 2], atol=1e-5, rtol=1e-4)
            picks = row.rule(prediction) if row.rule is not None and row.state.masked else ()
            following.append(replace(row, state=row.state.reveal(picks)))
        rows_then = following
        assert states.tensor.tolist() == tokens_and_positions(rows_then, MASK)[0].tolist()
    assert sent.params.tensor[:, 0].tolist() == [FORWARDS] * len(rows)
