"""Converts files of chats, such as UltraChat's, into the JSONL that `train-mrp` reads.

`python -m training.convert FILES --out DATA.jsonl`. A file is Parquet or JSONL. A row has one of these columns:

- `messages`: objects with `role` and `content` (UltraChat 200k, OpenAI).
- `conversations`: the same, or objects with `from` and `value` (ShareGPT). `human` is the user, `gpt` the assistant.
- `data`: texts of the user and of the assistant in turn (the first UltraChat).

All other columns are left out. Parquet needs pyarrow, which the extra `train` installs.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from service.errors import DataError
from training.conversations import as_messages, read_lines

_ROLES = {"human": "user", "gpt": "assistant"}
_TURNS = ("user", "assistant")
_ROWS_AT_ONCE = 1024


def convert(files: Iterable[Path], out: Path, limit: int | None = None) -> int:
    """Writes the chats of the files as JSONL. Returns their number, at most `limit`.

    Raises DataError, which names the file, the row and the reason. Nothing is left of `out` then.
    """
    count, new = 0, out.with_name(f"{out.name}.new")
    try:
        with new.open("w", encoding="utf-8") as lines:
            for messages in islice(_chats(files), limit):
                lines.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
                count += 1
        new.replace(out)
    except OSError as error:
        raise DataError(f"{out} cannot be written: {error.strerror}") from error
    finally:
        new.unlink(missing_ok=True)
    return count


def _chats(files: Iterable[Path]) -> Iterator[list[dict[str, str]]]:
    for file in files:
        for number, row in _parquet(file) if file.suffix == ".parquet" else read_lines(file):
            try:
                yield _messages(row)
            except DataError as error:
                raise DataError(f"{file}, row {number}: {error.message}") from error


def _parquet(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows with their numbers, from 1 on. Only the columns of chats are read, if there are any."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise DataError(f"{file} is Parquet, which needs pyarrow: pip install '.[train]'") from error

    try:
        with ParquetFile(file) as parquet:
            columns = [name for name in parquet.schema_arrow.names if name in _COLUMNS] or None
            batches = parquet.iter_batches(_ROWS_AT_ONCE, columns=columns)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except (OSError, ArrowException) as error:
        raise DataError(f"{file} cannot be read as Parquet: {error}") from error


def _messages(row: Mapping[str, Any]) -> list[dict[str, str]]:
    for column, read in _COLUMNS.items():
        if row.get(column) is not None:
            return as_messages(read(row[column]))
    raise DataError(f"a column of {', '.join(_COLUMNS)} is expected, the columns are {', '.join(row) or 'none'}")


def _with_roles(messages: object) -> object:
    """Messages of either kind as messages with role and content only. Anything else stays as it is."""
    return [_with_role(message) for message in messages] if isinstance(messages, list) else messages


def _with_role(message: object) -> object:
    if not isinstance(message, dict):
        return message
    role = message.get("role", message.get("from"))
    return {"role": _ROLES.get(str(role), role), "content": message.get("content", message.get("value"))}


def _in_turn(texts: object) -> object:
    """The messages of texts that user and assistant write in turn."""
    if not isinstance(texts, list):
        return texts
    return [{"role": _TURNS[number % 2], "content": text} for number, text in enumerate(texts)]


#: the columns of chats, and what makes messages of each
_COLUMNS = {"messages": _with_roles, "conversations": _with_roles, "data": _in_turn}


def main(words: list[str] | None = None) -> int:
    """Runs the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="Parquet or JSONL files, read in this order")
    parser.add_argument("--out", type=Path, required=True, help="the JSONL to write")
    parser.add_argument("--limit", type=int, help="the most chats")
    options = parser.parse_args(words)
    try:
        count = convert(options.files, options.out, options.limit)
    except DataError as error:
        print(f"convert: {error.message}", file=sys.stderr)
        return 1
    print(f"{count} chats: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
