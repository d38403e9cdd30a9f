"""What the live displays draw: the table, its columns, and how long the rest takes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rlbotics_jax.progress import COLUMNS, Pace, View, _fit


def rows(first, last):
    return [(i, {"Loss/value": 0.25}) for i in range(first, last + 1)]


@pytest.mark.parametrize("log_interval", [1, 7, 100])
def test_the_table_keeps_the_last_log_intervals_and_the_newest_iteration(log_interval):
    view = View(log_interval, ticking=True)
    view.begin(0, 200)
    for last in (1, 33, 34, 95):
        view.update(rows({1: 1, 33: 2, 34: 34, 95: 35}[last], last), 1.0)
        due = [i for i in range(1, last + 1) if i % log_interval == 0][-8:]
        expected = due if last in due else [*due, last]
        assert [int(line.split()[0]) for line in draw(view, 80)[2:-1]] == expected


def draw(view, width):
    console = Console(file=io.StringIO(), width=width, height=40)
    console.print(view, end="")
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [1, 8, 9, 10, 30, 79, 80, 88, 89, 90, 200])
@pytest.mark.parametrize("scale", [0.0, -1e-9, 1.0, -98765.4321, 1e12, -1e38, float("nan"), float("inf")])
def test_no_line_is_wider_than_the_terminal(width, scale):
    view = View(1, ticking=True)
    view.begin(0, 10)
    for i in range(1, 4):
        view.update([(i, {column.name: scale for column in COLUMNS})], 1.0)
    lines = draw(view, width)
    assert len(lines) == 6
    assert max(map(len, lines)) <= width
    if width in (80, 89):
        assert {len(line) for line in lines} == {width}


def test_numbers_fit_their_column():
    cases = {
        (0.0123, ".4f", 6): "0.0123",
        (12.3456, ".4f", 6): "12.35",
        (1234.5678, ".4f", 6): "1234.6",
        (-1234567.0, ".2f", 7): "-1e+06",
        (1234567.0, ",.0f", 9): "1,234,567",
        (12345678.0, ",.0f", 9): "12345678",
        (float("nan"), ".4f", 6): "-",
    }
    assert {case: _fit(*case) for case in cases} == cases


def test_columns_that_a_run_does_not_have_are_left_out():
    view = View(1, ticking=True)
    view.begin(0, 2)
    for i in (1, 2):
        view.update([(i, {"Performance/FPS": float("nan"), "Loss/value": 0.5})], 1.0)
    title, _, first, *_ = draw(view, 80)
    assert (title.split(), first.split()) == (["iteration", "steps/s", "value"], ["1", "-", "0.5000"])


def test_pace_is_that_of_the_last_blocks():
    pace = Pace()
    pace.begin(100, 1000)
    assert pace.remaining() is None
    pace.add(rows(101, 101), 60.0)
    assert pace.remaining() is None  # that was the compilation
    pace.add(rows(102, 110), 9.0)
    assert pace.remaining() == pytest.approx(890.0)
    for first in range(111, 311, 20):
        pace.add(rows(first, first + 19), 10.0)
    assert pace.remaining() == pytest.approx(690 * 0.5)
