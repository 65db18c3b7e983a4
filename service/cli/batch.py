"""`mrp-serve batch`: answers every line of a file, without a server. The same command resumes an interrupted batch."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import with_settings
from service.cli.output import Counter, notes
from service.errors import SettingsError
from service.settings.settings import Settings

if TYPE_CHECKING:
    from service.api.protocol import Json
    from service.batch.journal import Journal
    from service.batch.lines import BatchFile

#: seconds between two waits for the disk, and between two updates of the progress
_SYNC_S, _SHOW_S = 1.0, 0.2

#: settings of the server, which a batch has not
_OF_THE_SERVER = frozenset(
    {"max_waiting", "max_queue_s", "drain_timeout_s", "host", "port", "api_keys", "api_keys_file", "admin_keys"}
    | {"allowed_origins", "share_prefixes_between_keys", "api_server_count", "otlp_endpoint", "max_replicas"}
    | {"online_mrp_dir"}
)


@with_settings(without=_OF_THE_SERVER)
def command(
    *,
    input_file: Annotated[
        Path,
        typer.Option(
            *("--in", "--input-file", "-i"),
            help="JSONL, or Parquet (*.parquet). A line is a body of /generate or of OpenAI's batches.",
        ),
    ],
    output_file: Annotated[
        Path,
        typer.Option(
            *("--out", "--output-file", "-o"),
            help="JSONL: an answer or an error for each line. Resumed if it exists.",
        ),
    ],
    defaults: Annotated[
        str,
        typer.Option(
            help='JSON: fields for the requests that lack them, such as {"quality": "fast", "max_new_tokens": 512}.'
        ),
    ] = "{}",
    settings: Settings,
) -> None:
    """Answers every line of a file. Run it again to resume."""
    from service.batch.journal import Journal
    from service.batch.lines import BatchFile
    from service.telemetry.logs import install_logs

    try:
        fields = json.loads(defaults)
    except ValueError as error:
        raise SettingsError(f"defaults is {defaults[:80]!r}, which is not JSON: {error}", param="defaults") from None
    if not isinstance(fields, dict):
        raise SettingsError(f"defaults is {defaults[:80]!r}, a JSON object is expected", param="defaults")
    file = BatchFile(input_file, fields, settings.max_body_bytes)
    if input_file.exists() and output_file.exists() and input_file.samefile(output_file):
        raise SettingsError(f"out is {output_file}, which is the input", param="out")
    total = len(file)
    if file.is_parquet and (columns := file.unused_columns()):
        notes().print(f"columns without effect: {', '.join(columns)}", markup=False, soft_wrap=True)
    install_logs(settings)
    with Journal(output_file) as journal:
        try:
            asyncio.run(_run(file, journal, settings, total))
        except KeyboardInterrupt:
            notes().print("interrupted; run the same command again to resume")
            raise typer.Exit(130) from None
        print(f"{journal.count} lines in {output_file}, {journal.errors} of them errors", file=sys.stderr)


async def _run(file: BatchFile, journal: Journal, settings: Settings, total: int) -> None:
    from service.batch.answers import LineAnswers
    from service.batch.replicas import BatchReplicas

    lines = (line for line in file if not journal.has(line))
    if (first := next(lines, None)) is None:
        return
    notes().print(f"loading {settings.model_name} …", markup=False)
    replicas = await BatchReplicas.start(settings_of_replicas(settings))
    syncing = asyncio.create_task(_sync(journal))
    try:
        answers = LineAnswers(replicas, settings)
        began, before, due = time.monotonic(), journal.count, 0.0
        with Counter(total, before) as counter:

            def write(output: Json) -> None:
                nonlocal due
                journal.write(output)
                now = time.monotonic()
                if now < due and journal.count < total:
                    return
                due, seconds = now + _SHOW_S, now - began
                rate = (journal.count - before) / seconds
                left = timedelta(seconds=round((total - journal.count) / rate))
                what = f"{rate:.1f} lines/s, {answers.tokens / seconds:,.0f} tokens/s, {left} left"
                counter.reach(journal.count, f"{what}, {journal.errors} errors")

            await answers.run(chain([first], lines), write)
    finally:
        syncing.cancel()
        replicas.close()
    with suppress(asyncio.CancelledError):
        await syncing  # raises its error, if it had any


async def _sync(journal: Journal) -> None:
    while True:
        await asyncio.sleep(_SYNC_S)
        await asyncio.to_thread(journal.sync)


def settings_of_replicas(settings: Settings) -> list[Settings]:
    """A replica for each GPU unless the settings say otherwise. SettingsError for more replicas than GPUs."""
    count = settings.num_replicas if "num_replicas" in settings.model_fields_set else None
    gpus = _count_gpus() if settings.device in {"auto", "cuda"} else 0
    if not gpus or settings.tensor_parallel_size > 1:
        if gpus and count not in {None, 1}:
            raise SettingsError(
                f"num_replicas is {count}, allowed is 1 with tensor_parallel_size on GPUs", param="num_replicas"
            )
        return [settings] * (1 if count is None else count)
    if count is not None and count > gpus:
        raise SettingsError(f"num_replicas is {count}, but this machine has {gpus} GPUs", param="num_replicas")
    return [settings.model_copy(update={"device": f"cuda:{index}"}) for index in range(count or gpus)]


def _count_gpus() -> int:
    import torch

    return torch.cuda.device_count()
