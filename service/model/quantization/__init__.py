"""Layers whose weights are in 8 bits. A new scheme is a `QuantScheme` in `schemes.py`.

Weights are quantized when they are loaded, one matrix after another, or are published so (`prequantized.py`).
Activations keep their type, except in `w8a8`. Embedding, output head, norms and routers stay wide: they are small, or
answers depend on them most.
"""

from service.model.quantization.schemes import (
    QUANT_SCHEMES,
    PublishedScheme,
    QuantScheme,
    activation_parts,
    chosen_scheme,
    is_quantized,
    published_scheme,
    scales_per_row,
    scheme_named,
)

__all__ = [
    "QUANT_SCHEMES",
    "PublishedScheme",
    "QuantScheme",
    "activation_parts",
    "chosen_scheme",
    "is_quantized",
    "published_scheme",
    "scales_per_row",
    "scheme_named",
]
