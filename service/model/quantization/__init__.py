"""Layers whose matrices are kept in 8 bits. A form of it is one `Form` in `forms.py`.

Weights are quantized when they are loaded, one matrix after another. Activations keep their type, except in `w8a8`.
Embedding, output head, norms and routers stay as they are: they are small, or answers depend on them most.
"""

from service.model.quantization.forms import FORMS, QUANTIZED, Form, form_named

__all__ = ["FORMS", "QUANTIZED", "Form", "form_named"]
