"""Worker: writes this library's export of the case's actor."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from harness import installed_versions, serve
from update_case import ACTIONS, OBSERVATIONS, random_case
from update_jax import GROUP, build

from rlbotics_jax.envs import EnvironmentSpec
from rlbotics_jax.envs.spec import ActionMapping
from rlbotics_jax.policy import TrainedPolicy


def export(path: Path) -> dict[str, Any]:
    """Writes the file: no action bounds, as RLBotics' simulators with joint targets have none."""
    ppo, state, _, _ = build(random_case(1))
    TrainedPolicy(
        algorithm=ppo,
        parameters=ppo.policy_parameters(state),
        spec=EnvironmentSpec({GROUP: (OBSERVATIONS,)}, ACTIONS, None, None, episode_length=1000, dt=0.02),
        action_mapping=ActionMapping(),
        groups=(GROUP,),
        metadata={},
    ).export(path)
    return {"versions": installed_versions("jax", "flax", "jax2onnx")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    serve(lambda: export(path), {})
