"""Write all metrics of a run into one CSV file: step, name, value."""

from __future__ import annotations

import csv
from pathlib import Path


class CsvFile:
    def __init__(self, run_info):
        path = Path(run_info.folder, "metrics.csv")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.where = str(path)
        # An earlier attempt may have been killed in the middle of a line: keep what is whole.
        rows = [row for row in _rows(path) if len(row) == 3]
        self._known = {(row[1], int(row[0])) for row in rows}
        self._file = path.open("w", newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerows(rows)

    def knows(self, name, step):
        return (name, step) in self._known

    def log(self, step, time_s, values):
        self._writer.writerows([step, name, repr(value)] for name, value in values.items())

    def flush(self):
        self._file.flush()

    def close(self, *, finished):
        self._file.close()


def _rows(path):
    if not path.exists():
        return []
    text = path.read_text()
    return list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
