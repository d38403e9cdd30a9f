"""Bundles on an old robot: onnxruntime 1.16 and numpy 1, without JAX or this library.

python tests/integration/write_bundles.py FOLDER            where the library is installed
BUNDLES=FOLDER pytest tests/integration/runtime             where numpy<2, onnxruntime==1.16.3 and pytest are
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

FOLDER = Path(os.environ["BUNDLES"])
BUNDLES = sorted(path.with_suffix("") for path in FOLDER.glob("*.npz"))


def load_policy(bundle):
    """Return the policy, run by the bundle's own policy.py."""
    spec = importlib.util.spec_from_file_location(f"policy_of_{bundle.name}", str(bundle / "policy.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Policy(bundle / "policy.onnx")


def test_environment_is_the_old_one():
    assert onnxruntime.__version__.startswith("1.16.") and np.__version__.startswith("1.")
    assert all(importlib.util.find_spec(name) is None for name in ("jax", "onnx"))
    assert len(BUNDLES) >= 13  # one for each activation


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: path.name)
def test_actions_are_those_of_jax(bundle):
    """Within 1e-5 of a component's largest action, at batch 1, 2, 64 and for single observations."""
    arrays = dict(np.load(bundle.with_suffix(".npz")))
    expected = arrays.pop("action")
    assert np.isfinite(expected).all() and np.std(expected, axis=0).min() > 0
    allowed = 1e-5 * np.abs(expected).max(axis=0)
    policy = load_policy(bundle)
    assert policy.num_actions == expected.shape[1]
    for rows in (slice(0, 1), slice(0, 2), slice(None), 5):
        given = {name: array[rows] for name, array in arrays.items()}
        actions = policy.get_action(given if len(given) > 1 else next(iter(given.values())))
        assert actions.dtype == np.float32 and actions.shape == expected[rows].shape
        assert (np.abs(actions - expected[rows]) <= allowed).all()


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: path.name)
def test_example_runs(bundle, tmp_path):
    command = [sys.executable, "-I", str(bundle / "example.py")]
    result = subprocess.run(command, cwd=str(tmp_path), capture_output=True, timeout=60)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.decode().count("action [") == 5
