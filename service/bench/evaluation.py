"""Modes and knobs against accuracy, tokens per forward and time, on problems with a checker.

Every plan decodes the same problems with the same seeds. Plans are interleaved chunk by chunk, so that
a noisy machine hurts all of them alike. Knows no files and no command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import asdict

from service.decode.mode import DecodingMode
from service.decode.modes import Speculative
from service.engine import Completion, Engine, GenerationRequest, SamplingParams


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt as token ids, and whether a completion's ids answer it; None: there is no right and wrong."""

    prompt_token_ids: tuple[int, ...]
    is_right: Callable[[tuple[int, ...]], bool] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A mode with its knobs, run on one of the engines.

    `mrp`, `zero`: MRP's output set to 0, `block`: MRP sees the block alone (`variants.py`), `int8`, `fp8`,
    `w8a8`: the layers' matrices are kept so (`model/quantization`).
    """

    params: DecodingMode
    engine: str = "mrp"

    @property
    def name(self) -> str:
        """Such as `speculative mrp_steps=4`."""
        given = asdict(self.params)
        knobs = [f"{name}={value}" for name, value in given.items() if value is not None]
        return " ".join([self.params.mode, *knobs])


@dataclass(slots=True)
class Score:
    """What a plan reached. `same_as_first`: completions equal, token for token, to the first plan's."""

    plan: Plan
    completions: list[Completion] = field(default_factory=list)
    right: int = 0
    judged: int = 0
    same_as_first: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def accuracy(self) -> float | None:
        """Share of problems answered right, 0 to 1; None where nothing is judged."""
        return self.right / self.judged if self.judged else None

    @property
    def tokens(self) -> int:
        """Tokens decoded, end tokens included."""
        return sum(completion.stats.decoded_tokens for completion in self.completions)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens up to the end token per denoise or verify forward, over all problems."""
        forwards = [completion.stats.forwards for completion in self.completions]
        return self.tokens / sum(count.denoise + count.verify for count in forwards)

    @property
    def tokens_per_published_forward(self) -> float:
        """The same, had the published loops done it.

        They store every block by a forward of its own, and `speculative` reads a block's first state twice.
        """
        forwards = [completion.stats.forwards for completion in self.completions]
        blocks = sum(len(completion.blocks) for completion in self.completions)
        more = 2 if isinstance(self.plan.params, Speculative) else 1
        return self.tokens / (sum(count.denoise + count.verify for count in forwards) + more * blocks)

    @property
    def milliseconds_per_token(self) -> float:
        """Wall-clock time of the plan divided by its tokens."""
        return 1e3 * self.seconds / self.tokens

    @property
    def tokens_per_cpu_second(self) -> float:
        """Tokens by the CPU time of all threads of this process: what is left to compare on a shared machine."""
        return self.tokens / self.cpu_seconds

    @property
    def acceptance(self) -> float | None:
        """Share of drafts accepted; None for a plan without drafts."""
        proposed = sum(completion.stats.drafts_proposed for completion in self.completions)
        accepted = sum(completion.stats.drafts_accepted for completion in self.completions)
        return accepted / proposed if proposed else None


def evaluate(
    engines: Mapping[str, Engine],
    tasks: Sequence[Task],
    plans: Sequence[Plan],
    sampling: SamplingParams,
    limits: tuple[int, int] = (128, 8),
) -> Iterator[list[Score]]:
    """Runs all plans over all tasks; yields the scores so far after every plan's turn at a chunk.

    `limits`: max_new_tokens, and how many requests are decoded together (a chunk).
    """
    max_new_tokens, together = limits
    scores = [Score(plan) for plan in plans]
    for start in range(0, len(tasks), together):
        chunk = tasks[start : start + together]
        for score in scores:
            engine = engines[score.plan.engine]
            requests = [
                GenerationRequest(
                    str(start + number), task.prompt_token_ids, score.plan.params, sampling, max_new_tokens,
                    frozenset(engine.model.eos_token_ids),
                )
                for number, task in enumerate(chunk)
            ]  # fmt: skip
            begin, cpu = time.perf_counter(), time.process_time()
            completions = engine.generate(requests)
            score.seconds += time.perf_counter() - begin
            score.cpu_seconds += time.process_time() - cpu
            _judge(score, chunk, completions, scores[0].completions)
            yield scores


def _judge(score: Score, tasks: Sequence[Task], completions: list[Completion], static: list[Completion]) -> None:
    done = len(score.completions)
    score.completions += completions
    answered = zip(tasks, completions, strict=True)
    verdicts = [task.is_right(completion.token_ids) for task, completion in answered if task.is_right is not None]
    score.right, score.judged = score.right + sum(verdicts), score.judged + len(verdicts)
    reference = static[done : done + len(completions)]
    score.same_as_first += sum(c.token_ids == s.token_ids for c, s in zip(completions, reference, strict=True))
