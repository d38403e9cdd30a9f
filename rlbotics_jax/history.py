"""The metrics of a run by iteration: a column a metric in memory, a line of JSON an iteration in metrics.jsonl."""

from __future__ import annotations

import json
import math
import warnings
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

METRICS_FILE = "metrics.jsonl"

_INTEGERS = ("iteration", "env_steps")
"""In every row, and exact."""


class History:
    """Rows of metrics, kept as one compact column a metric: 8 bytes a number."""

    def __init__(self):
        self._columns: dict[str, array] = {}
        self._length = 0

    def add(self, row: Mapping[str, float]) -> None:
        """Adds an iteration. Rows may differ in their metrics; a column is NaN where its metric did not occur."""
        for name in row:
            if name not in self._columns:
                earlier = array("d", [math.nan]) * self._length
                self._columns[name] = array("q") if name in _INTEGERS else earlier
        for name, column in self._columns.items():
            column.append(row.get(name, math.nan))
        self._length += 1

    def rows(self) -> Iterator[dict[str, float]]:
        """Yields every iteration's metrics."""
        for i in range(self._length):
            yield {name: column[i] for name, column in self._columns.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns one array a metric, one entry an iteration: float64, and int64 for `iteration` and `env_steps`."""
        return {name: np.array(column) for name, column in self._columns.items()}


def json_line(row: Mapping[str, float]) -> str:
    """Returns the line of metrics.jsonl. What is not finite is left out: JSON has no NaN."""
    return json.dumps({name: value for name, value in row.items() if math.isfinite(value)}) + "\n"


def read_history(run: str | Path) -> dict[str, np.ndarray]:
    """Returns the metrics of a run directory, as `TrainResult.history`; of a run that is still going, too.

    The file is one line of JSON an iteration: `pandas.read_json(path, lines=True)` reads it as well.

    Raises:
        FileNotFoundError: where the run has no metrics.jsonl.
        ValueError: where a line of it cannot be read. A last line that is torn, as a killed process leaves it, is
            passed over.
    """
    return _read(Path(run)).arrays()


def earlier_history(run: str | Path, iteration: int) -> History:
    """Returns the metrics of a run up to an iteration that is to be resumed from; empty where it wrote none.

    Where they cannot be read this warns, since the run can be resumed without them.
    """
    try:
        return _read(Path(run), iteration)
    except FileNotFoundError:
        return History()
    except (OSError, ValueError) as error:
        warnings.warn(f"{error} The resumed run's log begins at iteration {iteration + 1}.", stacklevel=2)
        return History()


def _read(run: Path, last: float = math.inf) -> History:
    path, history = run / METRICS_FILE, History()
    if not path.is_file():
        raise FileNotFoundError(f"'{run}' has no {METRICS_FILE} (runner.logger.log_metrics writes it).")
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                if row["iteration"] > last:
                    break
                history.add(row)
            except (ValueError, TypeError, LookupError) as error:
                if line.endswith("\n"):
                    raise ValueError(f"'{path}', line {number}, is not the metrics of an iteration.") from error
    return history
