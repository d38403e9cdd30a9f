"""The guards: when a run ends by itself, and the sentences that say why."""

from __future__ import annotations

import math

import pytest
from helpers import small_config

from rlbotics_jax.guards import Guards, TrainingError

FINE = {
    "Episodes/mean_reward": 1.0,
    "Diagnostics/invalid_steps": 0.0,
    "NonFinite/step": -1.0,
    "NonFinite/environment": -1.0,
    "NonFinite/reward": 0.0,
    "NonFinite/observations.policy": 0.0,
    "Diagnostics/consecutive_rejected_updates": 0.0,
}
BROKEN = {
    **FINE,
    "Diagnostics/invalid_steps": 3.0,
    "NonFinite/step": 0.0,
    "NonFinite/environment": 7.0,
    "NonFinite/observations.policy": 3.0,
    "NonFinite/reward": 1.0,
}


def guards(**overrides):
    return Guards(small_config(**{f"runner__{key}": value for key, value in overrides.items()}).runner)


def test_what_was_not_finite_is_named_with_step_and_environment():
    sentence = (
        "Iteration 5: 3 steps were not valid, the first of them step 0 (from 0) of environment 7; not finite: reward, "
        "observations.policy."
    )
    lenient = guards()
    with pytest.warns(UserWarning) as caught:
        for iteration, metrics in ((4, FINE), (5, BROKEN), (6, BROKEN)):
            lenient.check(iteration, metrics)
    (warning,) = caught  # once
    assert str(warning.message) == f"{sentence} Such environments are reset, and these steps left out."
    with pytest.raises(TrainingError) as raised:
        guards(check_for_nan=True).check(5, BROKEN)
    assert str(raised.value) == f"{sentence} Set runner.check_for_nan to false to reset such environments instead."


def test_rejected_updates_end_the_run_at_their_limit():
    limited = guards(algorithm__max_rejected_updates=4)
    limited.check(1, {**FINE, "Diagnostics/consecutive_rejected_updates": 3.0})
    with pytest.raises(
        TrainingError, match=r"the last 4 mini-batch updates .* is 4\); lower runner.algorithm.learning"
    ):
        limited.check(2, {**FINE, "Diagnostics/consecutive_rejected_updates": 4.0})


@pytest.mark.parametrize(
    ("patience", "returns", "stops_at"),
    [
        (1, [1.0, 9.9, 10.0, 3.0, 4.0], [2]),
        (3, [11, 11, 9, 10, 10, 10, 10, 10], [5]),  # said once
        (2, [math.nan, 12, math.nan, 12, 12], [4]),
        (2, [9, 9, 9], []),
        (1, [10, 9, 10], [0]),  # the iterations that the run still takes to end may fall below
    ],
)
def test_early_stopping_waits_for_the_threshold_to_hold(patience, returns, stops_at):
    early = guards(early_stopping_threshold=10.0, early_stopping_patience=patience)
    said = [early.check(i, {**FINE, "Episodes/mean_reward": value}) for i, value in enumerate(returns)]
    assert [i for i, text in enumerate(said) if text is not None] == stops_at


def test_the_patience_of_a_resumed_run_counts_on():
    runner = small_config(runner__early_stopping_threshold=10.0, runner__early_stopping_patience=3).runner
    resumed = Guards(runner, earlier_returns=[12.0, 3.0, 12.0, 12.0])
    assert not resumed.is_good_enough
    assert resumed.check(5, {**FINE, "Episodes/mean_reward": 12.0}) is not None and resumed.is_good_enough
    # One that had ended is complete, though its last iterations fell below, and goes on when it is told to.
    ended = Guards(runner, earlier_returns=[12.0, 12.0, 12.0, 3.0])
    assert ended.is_good_enough
    assert all(ended.check(i, {**FINE, "Episodes/mean_reward": 12.0}) is None for i in (5, 6, 7))


def test_early_stopping_says_why():
    early = guards(early_stopping_threshold=10.0)
    assert early.check(7, {**FINE, "Episodes/mean_reward": 12.345}) == (
        "Iteration 7: the mean return, now 12.35, has been at least 10 for 1 iteration "
        "(runner.early_stopping_threshold): the run ends."
    )


def test_without_a_threshold_no_return_is_enough():
    assert guards().check(1, {**FINE, "Episodes/mean_reward": math.inf}) is None
