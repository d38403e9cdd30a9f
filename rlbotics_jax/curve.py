"""The learning curve of a run as a picture: mean return and mean length of its episodes over environment steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlbotics_jax.atomic import replacing
from rlbotics_jax.extras import missing_package

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVE_FILE = "learning_curve.png"

_PANELS = {"mean_reward": "mean return", "mean_length": "mean length (steps)"}
_TRAINING, _EVALUATION = "#2463a8", "#e0701b"


def write_learning_curve(history: Mapping[str, np.ndarray], path: str | Path) -> Path | None:
    """Draws a history into a PNG, titled with the name of the run directory that it lies in.

    Evaluations, where there are any, are points over the curve. Needs no screen and leaves pyplot's figures alone.

    Args:
        history: as `TrainResult.history` and `read_history`.
        path: the PNG, replaced as a whole.

    Returns:
        The path, or None where no episode ended: then there is nothing to draw.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    path = Path(path).absolute()
    figure = _draw(history, path.parent.name)
    if figure is None:
        return None
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
    return path


def _draw(history: Mapping[str, np.ndarray], title: str) -> Figure | None:
    """Returns a panel a metric, of those that are finite anywhere; None where none is."""
    panels = {
        metric: (_points(history, f"Episodes/{metric}"), _points(history, f"Evaluation/{metric}")) for metric in _PANELS
    }
    panels = {metric: curves for metric, curves in panels.items() if any(steps.size for steps, _ in curves)}
    if not panels:
        return None
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_package("The learning curve", error, "plot") from error

    figure = Figure(figsize=(8, 2 + 2.4 * len(panels)), dpi=150, layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for panel, (metric, (training, evaluation)) in zip(axes, panels.items(), strict=True):
        style = "o" if training[0].size == 1 else "-"  # a line through one point is not seen
        panel.plot(*training, style, color=_TRAINING, linewidth=1.4, label="training, recent episodes")
        if evaluation[0].size:
            panel.plot(*evaluation, "o", color=_EVALUATION, markeredgecolor="white", label="evaluation, deterministic")
        panel.set_ylabel(_PANELS[metric])
        panel.grid(linewidth=0.5, alpha=0.4)
        panel.spines[["top", "right"]].set_visible(False)
        panel.yaxis.set_major_formatter(_short)
    axes[-1].set_xlabel("environment steps")
    axes[-1].set_xlim(left=0)
    axes[-1].xaxis.set_major_formatter(_short)
    if any(evaluation[0].size for _, evaluation in panels.values()):
        axes[0].legend(frameon=False, loc="lower right")
    return figure


def _points(history: Mapping[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the environment steps and values of a metric where it is finite."""
    if name not in history:
        return np.empty(0), np.empty(0)
    finite = np.isfinite(history[name])
    return history["env_steps"][finite], history[name][finite]


def _short(value: float, _position: int | None = None) -> str:
    """Returns a tick's text, such as 2M for 2,000,000."""
    for size, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k"), (1.0, "")):
        if abs(value) >= size or size == 1.0:
            # Rounded, since ticks at zero may be 1e-17; + 0.0, since they may be -0.0.
            return f"{round(value / size, 9) + 0.0:g}{suffix}"
