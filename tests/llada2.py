"""LLaDA2's network by its definition: published names, loops over heads, tokens and experts, none of our layers.

Written from the published `modeling_llada2_moe.py`. Slow and obvious.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class PlainLlada2:
    """A network of published weights. `raw`: its config.json."""

    raw: Mapping[str, Any]
    weights: Mapping[str, Tensor]

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """`[T, V]` of a whole sequence under the block-causal mask. A position's logits are of its own token."""
        x = self.weights["model.word_embeddings.weight"][list(tokens)]
        for number in range(self.raw["num_hidden_layers"]):
            layer = f"model.layers.{number}."
            x = x + self.attention(layer + "attention.", self.norm(layer + "input_layernorm", x))
            inner = self.norm(layer + "post_attention_layernorm", x)
            sparse = number >= self.raw["first_k_dense_replace"]
            x = x + (self.experts(layer + "mlp.", inner) if sparse else self.swiglu(layer + "mlp.", inner))
        return self.norm("model.norm", x) @ self.weights["lm_head.weight"].T

    def norm(self, name: str, x: Tensor) -> Tensor:
        mean = (x * x).mean(-1, keepdim=True) + self.raw["rms_norm_eps"]
        return x / mean.sqrt() * self.weights[f"{name}.weight"]

    def attention(self, name: str, x: Tensor) -> Tensor:
        heads, keys, size = (self.raw[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        every = (x @ self.weights[f"{name}query_key_value.weight"].T).split(size, dim=-1)
        q, k, v = every[:heads], every[heads : heads + keys], every[heads + keys :]
        blocks = torch.arange(len(x)) // self.raw["block_size"]
        out = []
        for head in range(heads):
            key = head // (heads // keys)
            query = self.rotated(self.norm(f"{name}query_layernorm", q[head]))
            scores = query @ self.rotated(self.norm(f"{name}key_layernorm", k[key])).T / size**0.5
            out.append(scores.masked_fill(blocks[:, None] < blocks, -torch.inf).softmax(-1) @ v[key])
        return torch.cat(out, -1) @ self.weights[f"{name}dense.weight"].T

    def rotated(self, x: Tensor) -> Tensor:
        """The first share of the numbers as complex ones: half of them are real parts, half imaginary."""
        size = int(x.shape[-1] * self.raw["partial_rotary_factor"])
        frequencies = self.raw["rope_theta"] ** (-torch.arange(0, size, 2) / size)
        angles = (torch.arange(len(x))[:, None] * frequencies).to(x.dtype)
        turned = torch.complex(*x[:, :size].chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag, x[:, size:]], -1)

    def swiglu(self, name: str, x: Tensor) -> Tensor:
        gate, up = (x @ self.weights[f"{name}{leaf}_proj.weight"].T for leaf in ("gate", "up"))
        return (gate * gate.sigmoid() * up) @ self.weights[f"{name}down_proj.weight"].T

    def experts(self, name: str, x: Tensor) -> Tensor:
        out = self.swiglu(f"{name}shared_experts.", x) if self.raw["num_shared_experts"] else torch.zeros_like(x)
        for index, token in enumerate(x):
            start = index - index % self.raw["block_size"]
            pool = self.pool(name, x[start : start + self.raw["block_size"]])
            for expert, weight in self.chosen(name, token, pool).items():
                out[index] = out[index] + weight * self.swiglu(f"{name}experts.{expert}.", token)
        return out

    def scores(self, name: str, token: Tensor) -> tuple[list[float], list[float]]:
        """A token's score of each expert, and the score with the expert's bias."""
        scores = (self.weights[f"{name}gate.weight"] @ token).sigmoid().tolist()
        return scores, (torch.tensor(scores) + self.weights[f"{name}gate.expert_bias"]).tolist()

    def pool(self, name: str, block: Tensor) -> list[int] | None:
        """LLaDA2.2: the experts of a block, by the highest score that any of its tokens gives."""
        if not self.raw.get("expert_capacity"):
            return None
        highest = [max(each) for each in zip(*(self.scores(name, token)[1] for token in block), strict=True)]
        return sorted(range(len(highest)), key=lambda expert: -highest[expert])[: self.raw["expert_capacity"]]

    def chosen(self, name: str, token: Tensor, allowed: list[int] | None) -> dict[int, float]:
        """A token's experts and their weights. `allowed`: None for those of the best groups."""
        scores, biased = self.scores(name, token)
        groups, size = self.raw["n_group"], len(scores) // self.raw["n_group"]
        members = [range(group * size, (group + 1) * size) for group in range(groups)]
        best = sorted(members, key=lambda group: -sum(sorted((biased[expert] for expert in group), reverse=True)[:2]))
        if allowed is None:
            allowed = [expert for group in best[: self.raw["topk_group"]] for expert in group]
        experts = sorted(allowed, key=lambda expert: -biased[expert])[: self.raw["num_experts_per_tok"]]
        total = sum(scores[expert] for expert in experts) if len(experts) > 1 else 1.0
        return {expert: self.raw["routed_scaling_factor"] * scores[expert] / total for expert in experts}
