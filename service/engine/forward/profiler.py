"""Traces some steps of an engine with torch.profiler, as the setting `torch_profiler_dir` says."""

import logging
import os
from pathlib import Path
from threading import Lock

from torch.profiler import profile, schedule, tensorboard_trace_handler

from service.errors import SettingsError

_log = logging.getLogger(__name__)

#: steps before the profiler starts, and steps with it before the trace, since its start is slow
_SKIPPED, _WARM_UP = 60, 4
#: steps of the trace
_TRACED = 16
#: held by the engine that traces: two profilers in one process end it
_TRACING = Lock()


class StepProfiler:
    """Writes one trace to `folder`: the operations of 16 steps after the first 64, on the host and on CUDA.

    The trace has the names and times of operations. It has no numbers of tensors, so no tokens. Of several engines in
    one process, one traces at a time. SettingsError if `folder` cannot be a folder.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                f"torch_profiler_dir is {folder}, which cannot be a folder: {error.strerror}",
                param="torch_profiler_dir",
            ) from error
        self._folder, self._steps = folder, 0
        self._profile: profile | None = None
        self._is_written = False

    def begin_step(self) -> None:
        """Comes before each step, on the thread that steps the engine. Writing the trace takes up to seconds."""
        if self._is_written:
            return
        self._steps += 1
        if self._profile is not None:
            self._profile.step()  # the last one writes the trace
            if self._steps == _WARM_UP + _TRACED:
                self._profile.stop()
                _TRACING.release()
                self._profile, self._is_written = None, True
                _log.info("torch.profiler wrote a trace of %d steps to %s", _TRACED, self._folder)
        elif self._steps > _SKIPPED and _TRACING.acquire(blocking=False):
            self._steps = 0
            self._profile = profile(
                schedule=schedule(wait=0, warmup=_WARM_UP, active=_TRACED, repeat=1),
                on_trace_ready=tensorboard_trace_handler(str(self._folder), f"engine-{os.getpid()}", use_gzip=True),
            )
            self._profile.start()
