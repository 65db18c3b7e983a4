"""The plain way to decode: one request, no cache, every forward over the whole sequence, a dense mask.

Slow and obvious. It shares the networks' layers and the policies with the engine (both have tests of
their own: transformers' Qwen3, scripted oracles) and nothing else: no pages, rows, batches or sampling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from service.decode.block import MASKED, Block, Pick, PositionLogprobs, Step
from service.decode.canvas import Canvas
from service.decode.first_token import decode_after_first
from service.decode.mode import DecodingMode
from service.decode.policy import Decoding, Evaluate, Prediction
from service.engine.forward.logits_sampler import gumbel, noise_keys
from service.engine.forward.rows import Row
from service.engine.forward.sampling_batch import SamplingBatch
from service.engine.request import GenerationRequest, SamplingParams
from service.model import Checkpoint
from service.model.attention import round_heads
from service.model.layers import Attend
from tests.predictions import prediction_of


@dataclass
class Decoded:
    """A whole answer of the reference."""

    token_ids: tuple[int, ...]
    finish_reason: str
    denoise_forwards: int
    steps: list[list[Step]] = field(default_factory=list)


def block_causal_mask(length: int, block_size: int) -> Tensor:
    """`[T, T]`, True where a query (row) may see a key (column)."""
    blocks = torch.arange(length) // block_size
    return blocks[:, None] >= blocks[None, :]


def dense_attention(mask: Tensor) -> Attend:
    """Attention by its definition, mask `[T, T]`."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)

    return attend


def with_rounded_heads(attend: Attend) -> Attend:
    """The attention over keys and values in 8 bits, the rows' own included."""

    def attend_rounded(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(layer, q, round_heads(k).widened(k.dtype), round_heads(v).widened(v.dtype))

    return attend_rounded


class Reference:
    """Decodes requests over a checkpoint, one at a time. `kv_cache_dtype`: as the engine's."""

    def __init__(self, checkpoint: Checkpoint, kv_cache_dtype: str = "auto") -> None:
        self.checkpoint, self.config = checkpoint, checkpoint.config
        self._rounds = kv_cache_dtype == "int8"
        self._hidden: dict[tuple[int, ...], Tensor] = {}

    # --- networks ----------------------------------------------------------------------------------

    @torch.inference_mode()
    def hidden(self, tokens: Sequence[int]) -> Tensor:
        """The backbone's hidden states of a whole sequence, `[T, H]`. They are computed once for each sequence."""
        key = tuple(tokens)
        if key not in self._hidden:
            self._hidden[key] = self._computed(tokens)
        return self._hidden[key]

    def _computed(self, tokens: Sequence[int]) -> Tensor:
        positions = torch.arange(len(tokens))[None]
        size = 1 if self.config.causal else self.config.block_size
        attend = self._attention(len(tokens), size)
        return self.checkpoint.backbone(torch.tensor([list(tokens)]), positions, attend)[0]

    @torch.inference_mode()
    def refined(self, tokens: Sequence[int], anchors: Tensor) -> Tensor:
        """MRP's next anchors for a whole sequence, `[T, H]` -> `[T, H]`."""
        backbone, positions = self.checkpoint.backbone, torch.arange(len(tokens))[None]
        attend = self._attention(len(tokens), self.config.block_size)
        embedded = backbone.embed(torch.tensor([list(tokens)]))
        assert self.checkpoint.mrp is not None
        return self.checkpoint.mrp(embedded, anchors[None], backbone.rotation(positions), attend)[0]

    def _attention(self, length: int, block_size: int) -> Attend:
        attend = dense_attention(block_causal_mask(length, block_size))
        return with_rounded_heads(attend) if self._rounds else attend

    def evaluate(self, prefix: Sequence[int], state: Block) -> Tensor:
        """Hidden states of a block behind its clean prefix, `[L, H]`. Without its first token: of the block before."""
        if self.lacks_first(state):
            return self.hidden(prefix)[-len(state.tokens) :]
        return self.hidden([*prefix, *self.filled(state)])[len(prefix) :]

    def refine(self, prefix: Sequence[int], state: Block, anchor: Tensor) -> Tensor:
        """Next anchor of a block; the prefix is anchored on the backbone's clean hidden states, `[L, H]`."""
        clean = self.hidden(prefix) if prefix else anchor[:0]
        return self.refined([*prefix, *self.filled(state)], torch.cat([clean, anchor]))[len(prefix) :]

    def filled(self, state: Block) -> list[int]:
        """A block's tokens with the mask token where nothing is decoded."""
        return self.unmasked(state.tokens)

    def unmasked(self, tokens: Sequence[int]) -> list[int]:
        """Tokens with the mask token where nothing is decoded."""
        return [self.config.mask_token_id if token == MASKED else token for token in tokens]

    def lacks_first(self, state: Block) -> bool:
        """Whether the state's first token is to be predicted by the block before."""
        return self.config.shifted and state.tokens[0] == MASKED

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `[L, H]` -> the logits of each position's token, `[L, V]`."""
        return self.checkpoint.backbone.logits(hidden.roll(1, 0) if self.config.shifted else hidden)

    # --- reading -----------------------------------------------------------------------------------

    @torch.inference_mode()
    def read(
        self,
        hidden: Tensor,
        state: Block,
        start: int,
        sampling: SamplingParams,
        judge: Sequence[int] = (),
        sequence: Standing | None = None,
        edit: Sequence[int] = (),
    ) -> Prediction:
        """hidden `[L, H]` of a block at absolute position `start`. Each pick has the position's two likeliest tokens.

        Tokens are drawn at the request's temperature. Rules read the logits at 1, or at a higher temperature.
        `sequence`: the request and its tokens, on which penalties, bias and forbidden tokens depend; None: it has none.
        `edit`: revealed positions that are read as masked ones are.
        """
        size, logits = len(state.tokens), self.logits(hidden).float()
        if sequence is not None:
            for position in (*state.masked, *judge, *edit):
                logits[position] = plain_adjusted(logits[position], sequence, state, position)
        rule_logits, logits = logits / max(1.0, sampling.temperature), logits / (sampling.temperature or 1.0)
        probabilities = (rule_logits - rule_logits.logsumexp(-1, keepdim=True)).exp()  # rounded as by the engine
        logprobs, masked = logits.log_softmax(-1), sorted((*self.readable(state), *edit))
        scores = torch.stack([self.allowed(row, sampling) for row in logits[masked]]) if masked else logits[:0]
        if sampling.temperature > 0:
            row = Row(state, start // size, (), False, sampling, rescore=tuple(edit), edits=True)
            if self.lacks_first(state):
                row = Row(Block((0,) * size), start // size - 1, (), False, sampling, opens_next=True)
            reads = SamplingBatch.from_rows([row], size, self.config.sub_block_size, self.config.draft_masks)
            keys = noise_keys(reads)  # one for each position
            scores = scores + gumbel(torch.tensor(keys), torch.arange(scores.shape[-1]))
        picks = [
            Pick(
                position,
                token,
                float(probabilities[position, token]),
                self.top_two(logprobs[position], probabilities[position]),
                float(logprobs[position, token]),
            )
            for position, token in zip(masked, scores.argmax(-1).tolist(), strict=True)
        ]
        entropies = torch.special.entr(rule_logits[masked].softmax(-1)).sum(-1).tolist()
        judged = tuple(Pick(p, state.tokens[p], float(probabilities[p, state.tokens[p]])) for p in judge)
        return prediction_of(picks, judged, hidden, entropies)

    def readable(self, state: Block) -> Sequence[int]:
        """The masked positions that a forward may reveal."""
        masked, sub_block = state.masked, self.config.sub_block_size
        if not self.config.shifted or not masked:
            return masked
        if self.lacks_first(state):
            return (0,)
        if self.config.draft_masks is not None:
            return masked[: 1 + self.config.draft_masks]
        return tuple(position for position in masked if position // sub_block == masked[0] // sub_block)

    def top_two(self, logprobs: Tensor, confidences: Tensor) -> PositionLogprobs:
        """The two likeliest tokens with their log-probabilities and confidences, the mask token's share included.

        `logprobs`, `confidences`: `[V]`, at the request's temperature, and as rules read them.
        """
        possible = logprobs.clone()
        possible[self.config.mask_token_id] = -torch.inf
        tokens = possible.topk(2).indices.tolist()
        top = tuple((token, float(logprobs[token])) for token in tokens)
        return PositionLogprobs(top, confidences=tuple(float(confidences[token]) for token in tokens))

    def allowed(self, logits: Tensor, sampling: SamplingParams) -> Tensor:
        """logits `[V]` with -inf where a token must not be chosen: also edit tokens, so no insertions are decoded."""
        logits = logits.clone()
        logits[[self.config.mask_token_id, *(self.config.edit_token_ids or ())]] = -torch.inf
        if sampling.temperature == 0 or not sampling.filtered:
            return logits
        passes = plain_filter(logits.softmax(-1).tolist(), sampling.top_k, sampling.top_p, sampling.min_p)
        return logits.masked_fill(~torch.tensor(passes), -torch.inf)

    # --- decoding ----------------------------------------------------------------------------------

    def generate(self, request: GenerationRequest) -> Decoded:
        """Decodes a whole request: every block to its end, then cuts."""
        size, prompt = self.config.block_size, list(request.prompt_token_ids)
        clean, head = prompt[: len(prompt) // size * size], prompt[len(prompt) // size * size :]
        forwards, steps = 0, list[list[Step]]()
        while True:
            standing = (Standing(request, [*clean, *head]),) if request.sampling.adjusts_logits else ()
            canvas, used = self.decode(clean, head, request.mode, request.sampling, *standing)
            forwards, clean, head = forwards + used, clean + list(canvas.block.tokens), []
            steps.append(canvas.steps)
            output = clean[len(prompt) :][: request.max_new_tokens]
            ends = [index for index, token in enumerate(output) if token in request.stop_token_ids]
            if ends:
                return Decoded(tuple(output[: ends[0]]), "stop", forwards, steps)
            if len(output) == request.max_new_tokens:
                return Decoded(tuple(output), "length", forwards, steps)

    def policy(self, mode: DecodingMode, canvas: Canvas) -> Decoding:
        return decode_after_first(mode, canvas) if self.config.shifted else mode.decode(canvas)

    def decode(
        self,
        clean: Sequence[int],
        head: Sequence[int],
        mode: DecodingMode,
        sampling: SamplingParams,
        sequence: Standing | None = None,
    ) -> tuple[Canvas, int]:
        """One block, and how many Evaluates it took."""
        canvas = Canvas(Block((*head, *[MASKED] * (self.config.block_size - len(head)))), in_order=self.config.causal)
        if sequence is not None:
            canvas.without_bad_words = sequence.without_bad_words
        policy, forwards, start = self.policy(mode, canvas), 0, len(clean)
        query = next(policy)
        while True:
            if isinstance(query, Evaluate):
                forwards += not self.lacks_first(query.states[0])
                readings = tuple(
                    self.read(self.evaluate(clean, s), s, start, sampling, (), sequence, query.edit)
                    for s in query.states
                )
            else:
                hidden = self.refine(clean, query.state, query.after.handle)
                readings = (self.read(hidden, query.state, start, sampling, query.rescore, sequence),)
            try:
                query = policy.send(readings)
            except StopIteration:
                return canvas, forwards


@dataclass(frozen=True)
class Standing:
    """A request, and its tokens before the masked positions of the present block."""

    request: GenerationRequest
    before: Sequence[int]

    @property
    def prompt(self) -> Sequence[int]:
        """The tokens before the answer."""
        return self.before[: len(self.request.prompt_token_ids) - self.request.num_continued]

    def standing(self, state: Block) -> list[int]:
        """The tokens of the whole sequence, MASKED at masked positions of the block."""
        size = len(state.tokens)
        return [*self.before[: len(self.before) // size * size], *state.tokens]

    def without_bad_words(self, state: Block, picks: tuple[Pick, ...]) -> tuple[Pick, ...]:
        """The longest beginning of the picks, at least one, after whose first pick none completes a bad word."""
        for count in range(len(picks), 1, -1):
            after = self.standing(state.reveal(picks[:count]))[len(self.prompt) :]
            before = self.standing(state.reveal(picks[:1]))[len(self.prompt) :]
            if self.bad_words_in(after) == self.bad_words_in(before):
                return picks[:count]
        return picks[:1]

    def bad_words_in(self, answer: Sequence[int]) -> set[tuple[int, tuple[int, ...]]]:
        """The words that stand in an answer, and where."""
        words = self.request.sampling.bad_words_token_ids
        return {
            (start, word)
            for word in words
            for start in range(len(answer))
            if tuple(answer[start : start + len(word)]) == word
        }


def plain_adjusted(logits: Tensor, sequence: Standing, state: Block, position: int) -> Tensor:
    """logits `[V]` of a position -> the adjusted logits, token after token by the definition in docs/sampling.md.

    The position itself is read as masked.
    """
    request, sampling = sequence.request, sequence.request.sampling
    standing = sequence.standing(state.remask((position,)))
    prompt, answer = sequence.prompt, standing[len(sequence.prompt) :]
    index = len(standing) - len(state.tokens) + position - len(prompt)
    if index < 0:
        return logits
    words = sampling.bad_words_token_ids
    longest, in_words = max(map(len, words), default=0), {token for word in words for token in word}
    around = slice(max(0, index - longest), index + longest)  # a token completes no word that is farther away
    left, right = answer[around.start : index], answer[index + 1 : around.stop]
    before = sequence.bad_words_in([*left, MASKED, *right])
    adjusted = logits.tolist()
    for token in range(len(adjusted)):
        value = adjusted[token] + sampling.logit_bias.get(token, 0.0)
        count = answer.count(token)
        if count or token in prompt:
            value = value / sampling.repetition_penalty if value > 0 else value * sampling.repetition_penalty
        value -= sampling.frequency_penalty * count + sampling.presence_penalty * (count > 0)
        if index < sampling.min_tokens and token in request.stop_token_ids:
            value = -math.inf
        if token in in_words and sequence.bad_words_in([*left, token, *right]) != before:
            value = -math.inf
        adjusted[token] = value
    return torch.tensor(adjusted)


def plain_filter(probabilities: Sequence[float], top_k: int, top_p: float, min_p: float = 0.0) -> list[bool]:
    """Which tokens the filters leave: at least min_p times as likely as the likeliest token; fewer than k are better;
    of the k best, the better ones weigh less than p."""
    lowest = min_p * max(probabilities)
    probabilities = [value if value >= lowest else 0.0 for value in probabilities]
    best = sorted(probabilities, reverse=True)[: top_k or None]
    better, total = dict[float, float](), sum(best)  # probability -> the sum of higher ones
    for probability, weight in zip(best, accumulate(best, initial=0.0), strict=False):
        better.setdefault(probability, weight)
    return [
        (value > 0 or min_p == 0) and value >= best[-1] and (top_p >= 1 or better[value] / total < top_p)
        for value in probabilities
    ]
