"""The table of results, to which finished cells are added one by one."""

import csv
import fcntl
import io
import os

import pandas as pd

from benchmarks.quality.cells import COLUMNS, Cell
from benchmarks.quality.contenders import fingerprint, versions

TEXT = ("settings", "version", "head", "chosen")


def read_results(path):
    """Return the rows measured last, for each cell, settings and head."""
    if not path.exists():
        return pd.DataFrame(columns=[*Cell._fields, *COLUMNS])
    rows = pd.read_csv(path, dtype=dict.fromkeys(TEXT, str))
    return rows.drop_duplicates([*Cell._fields, "settings", "head"], keep="last")


def append_results(path, rows):
    """Add rows in one piece, also while another process does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(
            file.fileno(), to_csv(rows, header=os.fstat(file.fileno()).st_size == 0)
        )


def to_csv(rows, header):
    text = io.StringIO()
    writer = csv.DictWriter(text, [*Cell._fields, *COLUMNS], lineterminator="\n")
    if header:
        writer.writeheader()
    for row in rows:
        writer.writerow({name: rounded(value) for name, value in row.items()})
    return text.getvalue().encode()


def rounded(value):
    return f"{value:.6g}" if isinstance(value, float) else value


def missing_cells(cells, results, fresh=False):
    """Return the cells without a row of the same settings; if fresh, and versions."""
    columns = [*Cell._fields, "settings", *(["version"] if fresh else [])]
    done = set(results[columns].itertuples(index=False, name=None))
    current = {}
    for protocol, name in {(cell.protocol, cell.contender) for cell in cells}:
        version = (versions(name),) if fresh else ()
        current[protocol, name] = (fingerprint(name, protocol), *version)
    return [
        cell
        for cell in cells
        if (*cell, *current[cell.protocol, cell.contender]) not in done
    ]
