"""mrp-serve as a Python library.

from mrp_serve import TextModel

model = TextModel.load()  # the demo; or a folder, or a hub name
print(model.generate("Tom has 5 apples,", mode="speculative", mrp_steps=4).text)
"""

from service import __version__
from service.engine import EngineConfig
from service.errors import CheckpointError, InvalidRequest, MrpServeError, SettingsError
from service.library import StreamedBlock, TextCompletion, TextModel
from service.model import LoadOptions, load_checkpoint

__all__ = [
    "CheckpointError",
    "EngineConfig",
    "InvalidRequest",
    "LoadOptions",
    "MrpServeError",
    "SettingsError",
    "StreamedBlock",
    "TextCompletion",
    "TextModel",
    "__version__",
    "load_checkpoint",
]
