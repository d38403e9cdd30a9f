"""The control loop of the policy in this folder, on observations of zeros: put your robot in place of them.

    python example.py

It needs the four files of this folder, and numpy and onnxruntime (before its version 1.19, numpy<2). What the numbers
mean, in which order and in which units, says metadata.json.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from policy import Policy  # noqa: E402

STEPS = 5


def read_observation(policy):
    """Return {input name: array}; for a policy with a single input, as most have, the array alone will do."""
    return {name: np.zeros(shape, np.float32) for name, shape in policy.obs_shapes.items()}


def send_action(step, action):
    print(f"step {step}: action {action.tolist()}")


def main():
    policy = Policy(HERE / "policy.onnx")
    metadata = json.loads((HERE / "metadata.json").read_text(encoding="utf-8"))
    print(f"inputs {policy.obs_shapes}, {policy.num_actions} actions")
    for key, value in metadata.items():
        print(f"{key}: {value}")

    dt = metadata.get("dt", 0.02)  # seconds between two actions; 50 Hz where the file does not say
    policy.reset()  # where an episode begins: a recurrent policy forgets
    due = time.monotonic()
    for step in range(STEPS):
        send_action(step, policy.get_action(read_observation(policy)))
        due += dt
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
