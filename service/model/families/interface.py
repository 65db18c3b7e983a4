"""What a model family is: it reads config.json, builds the network, and knows the published names of its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from service.model.config import ModelConfig
from service.model.layout import Layout

if TYPE_CHECKING:
    from service.model.backbone import Backbone


class Family(Protocol):
    """A model family. Its module imports torch only in `network`: config files are read without it."""

    def config(self, raw: Mapping[str, Any], block_size: int | None) -> ModelConfig:
        """What a parsed config.json says. `block_size` overrides the checkpoint's.

        Raises CheckpointError naming the key that is missing or not supported.
        """

    def network(self, config: ModelConfig) -> Backbone:
        """The backbone with fresh weights, on torch's default device and in its default dtype."""

    def layouts(self, config: ModelConfig, parameter: str) -> Sequence[Layout]:
        """The published weights that make a parameter of the backbone. `config`: of the rank that has the parameter.

        Several layouts: any of them may stand in files; the first is written.
        """
