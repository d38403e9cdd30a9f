"""The learning curve's picture."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from rlbotics_jax.curve import _draw, _short, write_learning_curve

HISTORY = {
    "env_steps": np.array([1000, 2000, 3000, 4000]),
    "Episodes/mean_reward": np.array([math.nan, 1.0, math.nan, 3.0]),
    "Episodes/mean_length": np.array([math.nan, 10.0, 20.0, 30.0]),
    "Evaluation/mean_reward": np.array([math.nan, math.nan, 2.5, math.nan]),
}


def test_the_curves_hold_what_is_finite():
    figure = _draw(HISTORY, "2026-01-01_10-00-00")
    drawn = [[(*line.get_data(), line.get_marker()) for line in panel.lines] for panel in figure.axes]
    assert [[(steps.tolist(), values.tolist(), marker) for steps, values, marker in lines] for lines in drawn] == [
        [([2000, 4000], [1.0, 3.0], "None"), ([3000], [2.5], "o")],
        [([2000, 3000, 4000], [10.0, 20.0, 30.0], "None")],
    ]
    assert figure.get_suptitle() == "2026-01-01_10-00-00"
    assert [panel.get_ylabel() for panel in figure.axes] == ["mean return", "mean length (steps)"]
    assert figure.axes[1].get_xlabel() == "environment steps"


def test_one_point_is_seen_and_a_panel_without_any_left_out(tmp_path):
    one = {
        "env_steps": np.array([5]),
        "Episodes/mean_reward": np.array([1.0]),
        "Episodes/mean_length": np.array([math.nan]),
    }
    path = tmp_path / "learning_curve.png"
    assert write_learning_curve(one, path) == path
    picture = imread(path)
    assert picture.shape[:2] == (660, 1200)
    blue = (picture[..., 2] > 0.5) & (picture[..., 0] < 0.3)
    assert 20 < blue.sum() < 1000
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("history", [{}, {"env_steps": np.array([5]), "Episodes/mean_reward": np.array([math.nan])}])
def test_nothing_to_draw_writes_nothing(tmp_path, history):
    assert write_learning_curve(history, tmp_path / "curve.png") is None
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_a_full_disk_and_pyplots_figures(tmp_path):
    """In a process of its own: a missing matplotlib is told, pyplot stays away, a failed write changes no file."""
    code = f"""
import resource, sys
import numpy as np
from rlbotics_jax.curve import write_learning_curve
path = {str(tmp_path / "curve.png")!r}
history = {{"env_steps": np.array([1, 2]), "Episodes/mean_reward": np.array([1.0, 2.0])}}
sys.modules["matplotlib"] = None
try:
    write_learning_curve(history, path)
except ImportError as error:
    print(error)
del sys.modules["matplotlib"]
write_learning_curve(history, path)
print("matplotlib.pyplot" in sys.modules)
before = open(path, "rb").read()
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_learning_curve(history | {{"Episodes/mean_length": np.array([1.0, 2.0])}}, path)
except OSError as error:
    print(error.strerror, open(path, "rb").read() == before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.stdout.splitlines() == [
        "The learning curve needs the package 'matplotlib'; install it with: pip install 'rlbotics-jax[plot]'",
        "False",
        "File too large True",
    ], done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["curve.png"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (-5e-17, "0"),
        (0.30000000000000004, "0.3"),
        (950, "950"),
        (1000, "1k"),
        (-1500, "-1.5k"),
        (2e6, "2M"),
        (2.5e10, "25B"),
    ],
)
def test_ticks_are_short(value, text):
    assert _short(value) == text
