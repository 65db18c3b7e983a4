"""Layers whose weights are in 8 bits. A new scheme is a `QuantScheme` in `schemes.py`.

Weights are quantized when they are loaded, one matrix after another, or are published so (`prequantized.py`).
Activations keep their type, except in `w8a8`. Embedding, output head, norms and routers stay wide: they are small, or
answers depend on them most.
"""
