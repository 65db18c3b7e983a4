"""The published MRP modules. Their config.json does not name their kind, so they are known by their names.

Source: heavyball-research/multi-token-residual-prediction at commit 3f237b4, its README.md and scripts.
docs/modules.md has the table. A config.json with a key `mrp_…` names the kind itself. An operator's option wins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: `sdar-4b-mrp-3lyr-k2`, and `sdar-1_7b-mrp-3lyr` as the published scripts write it
_NAME = re.compile(r"(sdar-(?:1[._]7b|4b|8b)-mrp-3lyr)(-k2|-direct)?", re.IGNORECASE)
#: the folder of a repository in the hub's local cache
_CACHED = "models--heavyball--"
#: every published module was trained and measured with blocks of 16; the config.json of 4B says 4
_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class PublishedModule:
    """The kind of a published module. `residual`, `scale`: as in `MrpConfig`. `block_size`: the trained block size."""

    name: str
    residual: bool = True
    scale: float = 1.0
    block_size: int = _BLOCK_SIZE

    @property
    def keys(self) -> dict[str, bool | float]:
        """The keys of config.json that describe the kind."""
        return {"mrp_residual": self.residual, "mrp_scale": self.scale, "block_size": self.block_size}


def published_module(folder: Path, raw: Mapping[str, Any]) -> PublishedModule | None:
    """The published module in a folder with this config.json. None for another module, or one that names its kind."""
    if not raw.get("num_nextn_predict_layers") or any(key.startswith("mrp_") for key in raw):
        return None
    folder = folder.absolute()
    for name in (folder.name, folder.resolve().name, folder.parent.parent.name):
        if match := _NAME.fullmatch(name.removeprefix(_CACHED)):
            size, kind = match[1].lower().replace("_", "."), (match[2] or "").lower()
            return PublishedModule(size + kind, kind != "-direct", 2.0 if kind == "-k2" else 1.0)
    return None
