"""Parity with RLBotics 0.1.3, the witness whose figures are committed under golden/.

Where this library differs on purpose, the replay uses the setting under which both are equal: `std_type: log` (RLBotics
trains nothing else), one recorded permutation for all epochs, no observation normaliser inside the update (RLBotics
moves it between acting and updating), `use_clipped_value_loss` as recorded, terminations only (RLBotics bootstraps a
time-out from the state before the last step; gae.npz holds it, with that state's value given as the final one), and a
first learning rate at the ceiling, where RLBotics' rule on the first mini-batch's rounding changes nothing. The
observation statistics are float32 by design, also where the rest of the replay is float64.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from golden_replay import GOLDEN, SMALL, load, replay, update_files

TESTS = Path(__file__).parent
# RLBotics' textbook formula for the KL rounds to +-1.7e-6 a row in float32, and 0 to 1e-17 in float64.
FLOAT32_KL_ROUNDING = 1e-6
FLOAT64_ZERO = 1e-12


def expected(name):
    """The recorded figures, with the squashed log-probability's Jacobian made exact: RLBotics adds 1e-6 inside it."""
    record = load(name)
    if name == "distributions":
        slope = 1 - np.tanh(record["squashed_latent"]) ** 2
        added = np.log(slope + record["squashed_epsilon"]) - np.log(slope)
        record["squashed_log_prob"] = record["squashed_log_prob"] + added.sum(-1)
    return record


def check_elementwise(name, result):
    """|x - expected| <= 1e-5 |expected| for each element (plus 1e-12, for those that are 0 up to rounding)."""
    record = expected(name)
    for key, value in result.items():
        assert value.shape == record[key].shape
        np.testing.assert_allclose(value, record[key], rtol=1e-5, atol=FLOAT64_ZERO, err_msg=f"{name}: {key}")


def check_normwise(name, result):
    """||x - expected|| <= 1e-5 ||expected|| for each array."""
    record = expected(name)
    for key, value in result.items():
        assert value.shape == record[key].shape
        error, scale = (np.linalg.norm(np.float64(x)) for x in (value - record[key], record[key]))
        rounding = FLOAT32_KL_ROUNDING * np.sqrt(value.size) if key.endswith("kl") else 0.0
        assert error <= 1e-5 * scale + rounding, f"{name}: {key} differs by {error:.2e} of {scale:.2e}"


@pytest.mark.parametrize("name", [*SMALL, *update_files("float32")])
def test_float32(name):
    check_normwise(name, replay(name))


def test_float64(tmp_path):
    """All files in one process with x64, under the suite's strict settings."""
    environment = {
        **os.environ,
        "JAX_ENABLE_X64": "1",
        "JAX_NUMPY_RANK_PROMOTION": "raise",
        "JAX_DEBUG_NANS": "1",
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
    }
    command = [sys.executable, "-m", "golden_replay", str(tmp_path)]
    finished = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    names = [*SMALL, *update_files("float64")]
    for name in names:
        with np.load(tmp_path / f"{name}.npz") as result:
            check_elementwise(name, dict(result))
    assert len(names) == 11


def test_replays_cover_what_the_files_record():
    """Every recorded figure is either an input of the replay or compared; none is forgotten."""
    layers = [f"{part}_{i}" for part in ("kernel", "bias") for i in range(3)]
    inputs = {f"{network}_{layer}" for network in ("actor", "critic") for layer in layers}
    inputs |= {"actor_log_std", "learning_rate", "desired_kl", "clip_param", "value_loss_coef", "entropy_coef"}
    inputs |= {"max_grad_norm", "gamma", "lam", "use_clipped_value_loss", "num_learning_epochs", "num_mini_batches"}
    inputs |= {"actor_observations", "critic_observations", "last_actor_observations", "last_critic_observations"}
    inputs |= {"actions", "old_mean", "old_std", "old_log_prob", "values", "rewards", "dones", "permutation"}
    name = update_files("float32")[0]
    assert set(load(name)) - set(replay(name)) <= inputs


def test_both_precisions_hold_every_optimizer_and_schedule():
    for dtype in ("float32", "float64"):
        pairs = {tuple(name.split("_")[1:3]) for name in update_files(dtype)}
        assert pairs == {(o, s) for o in ("adam", "adamw", "sgd", "rmsprop") for s in ("fixed", "adaptive")}
    assert (GOLDEN / "README.md").exists()
