"""A checkpoint as a Python library: text in, text out, without Ray and HTTP. `Engine` is the layer below.

model = TextModel.load("service/demo")
[answer] = model.generate([[{"role": "user", "content": "What is 12 + 5?"}]])
print(answer.text)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from service.constraints import Constraint
from service.constraints.grammars import compile_grammar
from service.constraints.vocabulary import TokenVocabulary
from service.decode.mode import DecodingMode
from service.decode.registry import default_mode
from service.engine import Completion, Engine, EngineConfig, GenerationRequest, SamplingParams
from service.engine.request import check_text
from service.model import Checkpoint, LoadOptions, load_checkpoint
from service.model.device import pick_device, pick_dtype, settle_threads
from service.text import TextCodec

#: a text to continue, or messages (`role`, `content`) to answer
PromptType = str | Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class TextCompletion:
    """An answer as text, and its tokens and statistics."""

    text: str
    completion: Completion


class TextModel:
    """A checkpoint with its tokenizer and an engine. Not thread-safe."""

    def __init__(self, checkpoint: Checkpoint, config: EngineConfig | None = None) -> None:
        self.checkpoint = checkpoint
        self.codec = TextCodec.load(checkpoint.path)
        self.engine = Engine(checkpoint, config)
        self.codec.limit_to(self.engine.max_model_len)

    @classmethod
    def load(
        cls,
        name: str | Path,
        config: EngineConfig | None = None,
        *,
        options: LoadOptions | None = None,
        threads: int | None = None,
    ) -> TextModel:
        """Loads a checkpoint by folder or hub name, on a GPU if there is one. `threads`: as in `settle_threads`."""
        settle_threads(threads)
        device = pick_device("auto")
        return cls(load_checkpoint(name, options or LoadOptions(pick_dtype("auto", device), device)), config)

    def generate(
        self,
        prompts: Iterable[PromptType],
        mode: DecodingMode | None = None,
        sampling: SamplingParams | None = None,
        max_new_tokens: int = 256,
        constraint: Constraint | None = None,
    ) -> list[TextCompletion]:
        """Decodes prompts together and returns their answers in order. `mode`: None for the program's default mode.

        `constraint`: the constraint of every answer, such as `Constraint.choice(["yes", "no"])`. InvalidRequest if a
        prompt is empty or too long, if the chat template refuses messages, or if the constraint is wrong.
        """
        grammar = None if constraint is None else compile_grammar(constraint, self._vocabulary)
        requests = [
            GenerationRequest(
                str(index),
                self._encoded(prompt),
                mode or default_mode(),
                sampling or SamplingParams(),
                max_new_tokens,
                frozenset(self.codec.end_tokens(self.checkpoint.config.eos_token_ids)),
                grammar=grammar,
            )
            for index, prompt in enumerate(prompts)
        ]
        completions = self.engine.generate(requests)
        return [TextCompletion(self.codec.decode(completion.token_ids), completion) for completion in completions]

    def _encoded(self, prompt: PromptType) -> tuple[int, ...]:
        tokens = self.codec.encode(prompt) if isinstance(prompt, str) else self.codec.encode_chat(prompt)
        check_text(tokens, self.checkpoint.config)
        return tuple(tokens)

    @cached_property
    def _vocabulary(self) -> TokenVocabulary:
        return TokenVocabulary.for_checkpoint(self.codec, self.checkpoint.config)
