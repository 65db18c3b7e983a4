"""The modes there are: adding one is a params class, a policy file and a line here."""

from __future__ import annotations

from service.decode import params as knobs
from service.decode.block import Canvas
from service.decode.direct import direct
from service.decode.dynamic import dynamic
from service.decode.params import ModeParams
from service.decode.policy import Decoding, Policy
from service.decode.remask import remask
from service.decode.speculative import speculative
from service.decode.static import static

POLICIES: dict[type[ModeParams], Policy] = {
    knobs.Static: static,
    knobs.Dynamic: dynamic,
    knobs.Direct: direct,
    knobs.Speculative: speculative,
    knobs.Remask: remask,
}

#: mode name -> its params class
MODES: dict[str, type[ModeParams]] = {params.mode: params for params in POLICIES}


def decode_block(canvas: Canvas, params: ModeParams) -> Decoding:
    """Starts the policy of the params' mode on a canvas."""
    return POLICIES[type(params)](canvas, params)
