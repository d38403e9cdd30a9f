"""Checkpoints that rsl_rl's own runners wrote, in this library: the same actions, values and log-probabilities.

The versions are the folders of RSL_RL, besides the one that is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import optax
import pytest
from jax_task import JaxTask, assert_close, compute, make_config
from torch_task import IMAGES, VECTORS
from write_rsl_rl import ACTOR, CNN, CRITIC, PLAIN_CNN, TWO_IMAGES

from bridges.torch import load_torch_checkpoint
from rlbotics_jax.training import train

FOLDERS = {"installed": None, **{path.name: path for path in sorted(Path(os.environ["RSL_RL"]).iterdir())}}


@pytest.fixture(scope="module", params=FOLDERS)
def checkpoints(request, tmp_path_factory):
    """A folder of what one version wrote, in a process of its own."""
    folder = tmp_path_factory.mktemp(request.param)
    path = [] if FOLDERS[request.param] is None else [str(FOLDERS[request.param])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    script = Path(__file__).with_name("write_rsl_rl.py")
    result = subprocess.run([sys.executable, script, folder], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return folder


def images_of(case: str):
    if case in ("two_cnn", "shared_cnn"):
        return TWO_IMAGES
    return IMAGES if "cnn" in case else {}


def config_of(case: str):
    images, is_shared = list(images_of(case)), case == "shared_cnn"
    model = {"obs_normalization": case in ("scalar", "normalized_cnn")}
    if images:
        cnn = PLAIN_CNN if len(images) > 1 else CNN
        model |= {"class_name": "CNNModel", "cnn_cfg": cnn, "image_normalization": False}
    std_type = "log" if case == "log" else "scalar"
    return make_config(
        {"actor": ACTOR + images, "critic": CRITIC + images},
        actor={**model, "distribution_cfg": {"std_type": std_type}},
        critic=model,
        algorithm={"share_cnn_encoders": is_shared, "optimizer": "adamw" if is_shared else "adam"},
    )


@pytest.mark.parametrize("case", ["scalar", "log", "cnn", "normalized_cnn", "two_cnn", "shared_cnn"])
def test_networks_compute_the_same_and_training_goes_on(checkpoints, case):
    if not (checkpoints / f"{case}.pt").is_file():
        version = checkpoints.name
        assert (version.startswith("3.0") and "cnn" in case) or (version.startswith("3.") and case == "shared_cnn")
        return
    config = config_of(case)
    task = JaxTask(tuple({**VECTORS, **images_of(case)}.items()))
    state = load_torch_checkpoint(checkpoints / f"{case}.pt", config, task)
    wanted = dict(np.load(checkpoints / f"{case}.npz"))
    observations = {group: wanted[group] for group in dict(task.shapes)}
    found = compute(config, state.shared.algorithm, observations, wanted["actions"])
    assert_close(found["mean"], wanted["mean"])
    assert_close(found["std"], wanted["std"][0])
    assert_close(found["log_prob"], wanted["log_prob"])
    assert_close(found["values"], wanted["values"][:, 0])
    assert int(state.shared.iteration) == 3
    assert float(state.shared.algorithm.hyperparameters["learning_rate"]) == np.float32(wanted["learning_rate"])
    steps = optax.tree_utils.tree_get(state.shared.algorithm.optimizer, "count")
    assert int(steps) == 12  # 3 iterations of 2 epochs of 2 mini-batches
    assert np.isneginf(float(state.shared.best.score))
    if case == "scalar":
        result = train(config, task, state=state)
        assert int(result.state.shared.iteration) == 5
        assert np.isfinite(result.history["Loss/value"]).all()


@pytest.mark.parametrize(
    "case, what", [("recurrent", "a recurrent network"), ("state_dependent", "no standard deviation")]
)
def test_what_has_no_counterpart_is_refused_by_name(checkpoints, case, what):
    path = checkpoints / f"{case}.pt"
    if path.is_file():
        with pytest.raises(ValueError, match=what):
            load_torch_checkpoint(path, config_of("scalar"), JaxTask())
