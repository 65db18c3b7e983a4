"""How a number of a matrix is kept in 8 bits. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from service.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Form:
    """`dtype`: torch's name of the 8-bit type. `largest`: its largest number.

    `activations`: what a layer reads becomes 8 bits, too, each row with a scale of its own. Products are then sums of
    whole numbers, which are exact: a row's numbers do not depend on the other rows.
    """

    name: str
    dtype: str
    largest: float
    activations: bool = False


FORMS = {
    form.name: form
    for form in (
        Form("int8", "int8", 127.0),
        Form("fp8", "float8_e4m3fn", 448.0),
        Form("w8a8", "int8", 127.0, activations=True),
    )
}

#: the layers whose matrices are quantized: those of attention and feed-forwards, and MRP's first
QUANTIZED = frozenset({"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "eh_proj"})


def form_named(name: str) -> Form:
    """SettingsError for a name that no form has."""
    if name not in FORMS:
        raise SettingsError(
            f"quantization is {name!r}, allowed are {', '.join(map(repr, FORMS))}", param="quantization"
        )
    return FORMS[name]
