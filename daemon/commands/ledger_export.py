"""`ridealong ledger export`: rows to a file, as NDJSON, CSV or Parquet, a few at a time whatever their number.

The file is written beside its place and then given its name, so that it is whole or not there.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

Row = dict[str, Any]

GROUP_ROWS = 10_000
"""Rows of one of Parquet's groups: some megabytes in memory, and large enough to be read and packed well."""

COLUMNS = ("seq", "at", "kind", "agent", "context", "code", "subject", "body", "previous", "sha")
"""Of a table; the body is JSON text in it."""


class ExportFailed(Exception):
    """Nothing was exported; the message says why."""


def export(rows: Iterable[Row], form: str, path: Path) -> int:
    """Write the rows; gives their number.

    Raises:
        ExportFailed: the file cannot be written, or what writes its format is not installed.
    """
    write = _WRITERS[form]
    aside, counted = path.with_name(path.name + ".writing"), _Counted(rows)
    try:
        write(counted, aside)
        aside.replace(path)
    except OSError as error:
        raise ExportFailed(f"{path} cannot be written: {error}") from error
    finally:
        aside.unlink(missing_ok=True)
    return counted.count


class _Counted:
    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = rows
        self.count = 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._rows:
            self.count += 1
            yield row


def _write_ndjson(rows: Iterable[Row], path: Path) -> None:
    with path.open("w") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


def _write_csv(rows: Iterable[Row], path: Path) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        for row in rows:
            table.writerow({**row, "body": json.dumps(row["body"])})


def _write_parquet(rows: Iterable[Row], path: Path) -> None:
    try:
        import pyarrow  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise ExportFailed(
            "Parquet needs pyarrow: pip install 'ridealong[export]', or use ndjson or csv"
        ) from error
    kinds = {"seq": pyarrow.int64(), "at": pyarrow.timestamp("us", "UTC")}
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in COLUMNS])
    source = iter(rows)
    with parquet.ParquetWriter(path, schema) as file:
        while group := [_for_parquet(row) for row in islice(source, GROUP_ROWS)]:
            file.write_table(pyarrow.Table.from_pylist(group, schema))


def _for_parquet(row: Row) -> Row:
    return {**row, "at": datetime.fromisoformat(row["at"]), "body": json.dumps(row["body"])}


_WRITERS: dict[str, Callable[[Iterable[Row], Path], None]] = {
    "ndjson": _write_ndjson,
    "csv": _write_csv,
    "parquet": _write_parquet,
}
