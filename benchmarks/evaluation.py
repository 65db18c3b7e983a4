"""Modes and knobs against accuracy, tokens per forward and time, with MRP in several forms.

Every plan decodes the same tasks with the same seeds. Plans are interleaved chunk by chunk, so that a noisy machine
hurts all of them alike. Knows no files and no command line.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from service.decode.mode import DecodingMode
from service.decode.modes import Speculative
from service.engine import Completion, Engine, GenerationRequest, SamplingParams
from service.quality.calibration.prompts import PromptTask
from service.quality.schema import Plan


@dataclass(frozen=True, slots=True)
class Variant:
    """A mode with its knobs, run on one of the engines.

    `engine`: `mrp`; `zero`: MRP's output set to 0; `fp8`, `w8a8`: the layers' matrices are kept so; `int8`: KV pages
    are.
    """

    mode: DecodingMode
    engine: str = "mrp"

    @property
    def name(self) -> str:
        """Such as `speculative mrp_steps=4`."""
        return Plan.from_mode(self.mode).name


@dataclass(slots=True)
class Score:
    """The result of a variant. `same_as_first`: completions equal, token for token, to the first variant's."""

    variant: Variant
    completions: list[Completion] = field(default_factory=list)
    right: int = 0
    same_as_first: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def accuracy(self) -> float:
        return self.right / len(self.completions)

    @property
    def tokens(self) -> int:
        return sum(completion.stats.decoded_tokens for completion in self.completions)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens up to the end token per denoise or verify forward, over all tasks."""
        forwards = [completion.stats.forwards for completion in self.completions]
        return self.tokens / sum(count.denoise + count.verify for count in forwards)

    @property
    def mrp_per_forward(self) -> float:
        """MRP forwards per denoise or verify forward, those that only store a block included."""
        forwards = [completion.stats.forwards for completion in self.completions]
        return sum(count.mrp for count in forwards) / sum(count.denoise + count.verify for count in forwards)

    @property
    def tokens_per_published_forward(self) -> float:
        """The same, had the published loops done it.

        They store every block by a forward of its own, and `speculative` reads a block's first state twice.
        """
        forwards = [completion.stats.forwards for completion in self.completions]
        blocks = sum(len(completion.blocks) for completion in self.completions)
        more = 2 if isinstance(self.variant.mode, Speculative) else 1
        return self.tokens / (sum(count.denoise + count.verify for count in forwards) + more * blocks)

    @property
    def milliseconds_per_token(self) -> float:
        """Wall-clock time divided by tokens."""
        return 1e3 * self.seconds / self.tokens

    @property
    def tokens_per_cpu_second(self) -> float:
        """Tokens by the CPU time of all threads of this process, for comparisons on a shared machine."""
        return self.tokens / self.cpu_seconds

    @property
    def acceptance(self) -> float | None:
        """Share of drafts accepted; None without drafts."""
        proposed = sum(completion.stats.drafts_proposed for completion in self.completions)
        accepted = sum(completion.stats.drafts_accepted for completion in self.completions)
        return accepted / proposed if proposed else None


def evaluate(
    engines: Mapping[str, Engine],
    tasks: Sequence[PromptTask],
    variants: Sequence[Variant],
    sampling: SamplingParams,
    limits: tuple[int, int] = (128, 8),
) -> Iterator[list[Score]]:
    """Runs all variants over all tasks; yields the scores so far after every variant's turn at a chunk.

    `limits`: max_new_tokens, and the number of requests that are decoded together (a chunk).
    """
    max_new_tokens, together = limits
    scores = [Score(variant) for variant in variants]
    for start in range(0, len(tasks), together):
        chunk = tasks[start : start + together]
        for score in scores:
            engine = engines[score.variant.engine]
            requests = [
                GenerationRequest(
                    str(start + index), task.prompt_token_ids, score.variant.mode, sampling, max_new_tokens,
                    frozenset(engine.model.eos_token_ids),
                )
                for index, task in enumerate(chunk)
            ]  # fmt: skip
            begin, cpu = time.perf_counter(), time.process_time()
            completions = engine.generate(requests)
            score.seconds += time.perf_counter() - begin
            score.cpu_seconds += time.process_time() - cpu
            _judge(score, chunk, completions, scores[0].completions)
            yield scores


def _judge(score: Score, tasks: Sequence[PromptTask], completions: list[Completion], first: list[Completion]) -> None:
    done = len(score.completions)
    score.completions += completions
    answered = list(zip(tasks, completions, strict=True))
    score.right += sum(task.is_right(completion.token_ids) for task, completion in answered)
    pairs = zip(completions, first[done : done + len(completions)], strict=True)
    score.same_as_first += sum(completion.token_ids == other.token_ids for completion, other in pairs)
