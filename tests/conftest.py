"""What all tests share: one torch thread, and the golden checkpoints loaded once."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
