"""The decoding modes. A new mode is a class of this package, imported here and named in `Mode` and `__all__`.

The API, its documentation and the program follow. CONTRIBUTING.md names the documents and tests.
"""

from collections.abc import Mapping
from typing import get_args

from service.decode.knobs import Knob, knobs_in
from service.decode.modes.edit import Edit
from service.decode.modes.plain_modes import Direct, Dynamic, Entropy, Remask, Sequential, Static
from service.decode.modes.speculative import VERIFIED, Speculative

#: any mode
Mode = Static | Dynamic | Sequential | Entropy | Direct | Speculative | Remask | Edit

_ALL: tuple[type[Mode], ...] = get_args(Mode)

#: mode name -> its class
MODES: Mapping[str, type[Mode]] = {mode.name: mode for mode in _ALL}

#: knob name -> its values in all modes. If modes differ, the last one counts: `speculative` allows all of `direct`'s.
KNOBS: Mapping[str, Knob] = {name: knob for mode in _ALL for name, knob in knobs_in(mode).items()}

__all__ = [
    "KNOBS",
    "MODES",
    "VERIFIED",
    "Direct",
    "Dynamic",
    "Edit",
    "Entropy",
    "Mode",
    "Remask",
    "Sequential",
    "Speculative",
    "Static",
]
