"""Layers whose matrices are kept in 8 bits. A form of it is one `Form` in `forms.py`.

Weights are quantized when they are loaded, one matrix after another, or are published so (`published.py`, `files.py`).
Activations keep their type, except in `w8a8`. Embedding, output head, norms and routers stay as they are: they are
small, or answers depend on them most.
"""

from service.model.quantization.forms import (
    FORMS,
    QUANTIZED,
    Form,
    activation_parts,
    chosen_form,
    form_named,
    is_quantized,
    scales_of,
)
from service.model.quantization.published import Published, published_form

__all__ = [
    "FORMS",
    "QUANTIZED",
    "Form",
    "Published",
    "activation_parts",
    "chosen_form",
    "form_named",
    "is_quantized",
    "published_form",
    "scales_of",
]
