"""Writes bundles of freshly initialised policies, with observations and the actions that JAX computes for them.

    python tests/integration/write_bundles.py FOLDER

FOLDER then holds, for each policy, a bundle of its name, and NAME.npz: `action` (64, m), and an array of 64 observations
for each input of the graph. tests/integration/runtime compares them where this library is not installed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from policies import fresh_policy

from bridges.bundle import write_bundle
from bridges.policy import Policy
from rlbotics_jax.config import ACTIVATIONS
from rlbotics_jax.envs import EnvironmentSpec

VECTORS = {"joints": (5,), "command": (3,)}
LOW, HIGH = (-1.0, -300.0, 0.0), (2.0, 100.0, 0.04)
SQUASHED = {"class_name": "SquashedGaussianDistribution"}
CNN = {"class_name": "CNNModel", "cnn_cfg": {"output_channels": [4, 8], "stride": 2, "padding": "zeros"}}
RICH_CNN = {
    "class_name": "CNNModel",
    "cnn_cfg": {
        "output_channels": [4, 4, 8],
        "kernel_size": [5, 3, 3],
        "dilation": [1, 2, 1],
        "padding": "reflect",
        "norm": ["batch", "layer", "none"],
        "max_pool": [True, False, False],
        "global_pool": "avg",
    },
}


def spec(shapes: dict[str, tuple[int, ...]] = VECTORS, low: Any = None, high: Any = None) -> EnvironmentSpec:
    """Returns an environment of three actions: the actor's groups, images as bytes, and one for the critic alone."""
    dtypes = {group: "uint8" for group, shape in shapes.items() if len(shape) == 3}
    return EnvironmentSpec({**shapes, "privileged": (2,)}, 3, low, high, 100, 0.02, observation_dtypes=dtypes)


def actor(**keys: Any) -> dict[str, Any]:
    """Returns changes of the actor's config."""
    return {f"runner__actor__{key}": value for key, value in keys.items()}


def cases() -> dict[str, tuple[EnvironmentSpec, dict[str, Any]]]:
    """Returns name -> environment and changes of the config."""
    camera, mixed = {"camera": (3, 16, 16)}, {"camera": (1, 17, 15), "joints": (5,)}
    return {
        **{activation: (spec(), actor(activation=activation)) for activation in ACTIVATIONS},
        "bounded": (spec(low=LOW, high=HIGH), {}),
        "half_bounded": (spec(low=LOW, high=(*HIGH[:2], np.inf)), {}),
        "squashed": (spec(low=LOW, high=HIGH), actor(distribution_cfg=SQUASHED)),
        "clipped": (spec(), {"env__clip_actions": 0.5, **actor(obs_clip=1.0)}),
        "raw": (spec(), actor(obs_normalization=False)),
        "one_group": (spec({"joints": (5,)}), {}),
        "camera": (spec(camera), actor(**CNN)),
        "camera_and_joints": (spec(mixed, LOW, HIGH), actor(**RICH_CNN)),
    }


def write(folder: Path, name: str, environment: EnvironmentSpec, changes: dict[str, Any]) -> None:
    """Writes one bundle, and the arrays to compare."""
    *groups, privileged = environment.observation_shapes
    groups = {"actor": groups, "critic": [privileged]}
    policy = fresh_policy(environment, runner__obs_groups=groups, **changes)
    with tempfile.TemporaryDirectory() as temporary:
        bundle = write_bundle(policy.export(Path(temporary) / "policy.onnx"), folder / name)
    observations = policy.typical_observations()
    action = np.asarray(policy(observations))
    if list(Policy(bundle / "policy.onnx").obs_shapes) == ["observation"]:
        observations = {"observation": np.concatenate(list(observations.values()), axis=-1)}
    np.savez(folder / f"{name}.npz", action=action, **observations)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for name, case in cases().items():
        write(folder, name, *case)
        print(f"wrote {folder / name}", flush=True)
