"""How a number of a matrix is kept in 8 bits. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

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
QUANTIZED = frozenset({"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "eh_proj", "experts"})


def is_quantized(parameter: str) -> bool:
    """Whether a parameter such as `layers.0.mlp.down_proj.weight` is in 8 bits where a form is chosen."""
    return parameter.rpartition(".")[0].rpartition(".")[2] in QUANTIZED


def form_named(name: str) -> Form:
    """SettingsError for a name that no form has."""
    if name not in FORMS:
        raise SettingsError(
            f"quantization is {name!r}, allowed are {', '.join(map(repr, FORMS))}", param="quantization"
        )
    return FORMS[name]


def chosen_form(published: str | None, asked: str | None) -> str | None:
    """The form that files have or that is asked for, if any. SettingsError if both are there and differ."""
    if published is not None and asked not in (None, published):
        raise SettingsError(
            f"quantization is {asked!r}, but this checkpoint's files have 8-bit matrices, which are served as "
            f"{published!r}: allowed are {published!r} and none",
            param="quantization",
        )
    return published or asked


def scales_of(depth: int, columns: int | None) -> int:
    """Scales of a row of `depth` numbers of which `columns` share one; None: all. Groups are equally wide."""
    width = depth if columns is None else min(columns, depth)
    return depth // gcd(width, depth)


def activation_parts(name: str | None, ranks: int) -> int:
    """Into how many parts, each with scales of its own, ranks divide activations before they become 8 bits.

    1 if they stay wide: then ranks have the numbers of one device, up to the order of sums.
    """
    return ranks if name is not None and form_named(name).activations else 1
