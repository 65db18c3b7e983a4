"""Layers whose weights are in 8 bits. A new scheme is a `QuantScheme` in `schemes.py`.

Weights are quantized when they are loaded, one matrix after another, or are published so (`prequantized.py`). So are
the activations of their products, each row by itself. Embedding, output head, norms and routers stay wide: they are
small, or answers depend on them most.
"""
