"""What an iteration says about going on: non-finite environments, rejected updates, a return that is good enough."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping

from rlbotics_jax.config import OnPolicyRunnerConfig


class TrainingError(RuntimeError):
    """Training cannot go on: gradients that stay non-finite, or a non-finite environment under `check_for_nan`."""


class Guards:
    """Judges a run's iterations, one after the other.

    Attributes:
        is_good_enough: whether the mean return has once been at or above the early-stopping threshold for `patience`
            iterations in a row. It stays so: a run does not end at that very iteration.
    """

    def __init__(self, runner: OnPolicyRunnerConfig, earlier_returns: Iterable[float] = ()):
        """Takes the limits from the config.

        Args:
            runner: the config.
            earlier_returns: the mean returns of the iterations before a resumed run's, whose patience counts on.
        """
        self._check_for_nan, self._warned = runner.check_for_nan, False
        self._max_rejected = getattr(runner.algorithm, "max_rejected_updates", math.inf)
        self._threshold, self._patience = runner.early_stopping_threshold, runner.early_stopping_patience
        self._in_a_row, self.is_good_enough = 0, False
        for mean_return in earlier_returns:
            self._count(mean_return)

    def check(self, iteration: int, metrics: Mapping[str, float]) -> str | None:
        """Returns why an iteration is good enough to be the last, or None.

        Good enough is the mean return when it has been at or above the early-stopping threshold for `patience`
        iterations in a row; that is said once. So is a warning of non-finite environments that do not end the run.

        Raises:
            TrainingError: training cannot go on; with the likely cause.
        """
        rejected = metrics.get("Diagnostics/consecutive_rejected_updates", 0)
        if rejected >= self._max_rejected:
            raise TrainingError(
                f"Iteration {iteration}: the last {rejected:.0f} mini-batch updates had non-finite gradients and were "
                f"rejected (runner.algorithm.max_rejected_updates is {self._max_rejected}); lower "
                "runner.algorithm.learning_rate or look at the scale of rewards and observations."
            )
        if metrics["Diagnostics/invalid_steps"] > 0:
            broken = _broken(iteration, metrics)
            if self._check_for_nan:
                raise TrainingError(f"{broken} Set runner.check_for_nan to false to reset such environments instead.")
            if not self._warned:  # once a run
                warnings.warn(f"{broken} Such environments are reset, and these steps left out.", stacklevel=2)
            self._warned = True
        before, mean_return = self.is_good_enough, metrics["Episodes/mean_reward"]
        self._count(mean_return)
        if before or not self.is_good_enough:
            return None
        return (
            f"Iteration {iteration}: the mean return, now {mean_return:.2f}, has been at least {self._threshold:g} for "
            f"{self._patience} iteration{'s' * (self._patience > 1)} (runner.early_stopping_threshold): the run ends."
        )

    def _count(self, mean_return: float) -> None:
        """Counts an iteration. NaN, where no episode ended yet, is below any threshold."""
        reached = self._threshold is not None and mean_return >= self._threshold
        self._in_a_row = self._in_a_row + 1 if reached else 0
        self.is_good_enough |= self._in_a_row >= self._patience


def _broken(iteration: int, metrics: Mapping[str, float]) -> str:
    """Returns the sentence that says what was not finite, and where."""
    sources = [name.partition("/")[2] for name, count in metrics.items() if name.startswith("NonFinite/") and count > 0]
    named = ", ".join(source for source in sources if source not in ("environment", "step")) or "unknown"
    return (
        f"Iteration {iteration}: {metrics['Diagnostics/invalid_steps']:.0f} steps were not valid, the first of them "
        f"step {metrics['NonFinite/step']:.0f} (from 0) of environment {metrics['NonFinite/environment']:.0f}; "
        f"not finite: {named}."
    )
