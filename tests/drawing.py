"""What tests that draw share: OpenGL where the machine has it, the videos they read back, and a toy that draws itself."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys

import imageio.v2 as imageio
import jax.numpy as jnp
import numpy as np
from toys import Toy

from rlbotics_jax.envs import ActionMapping, environment_spec
from rlbotics_jax.policy import TrainedPolicy
from rlbotics_jax.rendering import RenderingError

# Its reader forks otherwise, of which JAX warns; the writer here is not imageio's.
os.environ.setdefault("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", "1")


@contextlib.contextmanager
def opengl_or_advice():
    """Lets a RenderingError pass on a machine without OpenGL alone, and only if it says what to install."""
    try:
        yield
    except RenderingError as error:
        code = "from mujoco.egl import GLContext; GLContext(8, 8).make_current()"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode != 0, error
        assert "apt install libegl1 libgl1 libgl1-mesa-dri" in str(error)


def read_video(path):
    """Returns the frames (F, H, W, 3) and what the file says of itself."""
    with imageio.get_reader(path, format="FFMPEG") as reader:
        return np.stack([*reader.iter_data()]), reader.get_meta_data()


@dataclasses.dataclass(frozen=True)
class Painter(Toy):
    """Reward 1 a step until the time limit; the picture's brightness tells the step: 20 + 5 times its number."""

    def outcome(self, time, goal, action):
        return 1.0, False

    @contextlib.contextmanager
    def renderer(self, width, height):
        yield lambda state: np.full((height, width, 3), 20 + 5 * min(int(state.data[0]), 40), np.uint8)


def steps_shown(frames):
    """Returns the steps that a painter's frames tell."""
    return np.rint((frames.mean(axis=(1, 2, 3)) - 20) / 5).astype(int).tolist()


@dataclasses.dataclass(frozen=True)
class Constant:
    """The policy that takes one action always, its parameter."""

    def policy(self, parameters):
        return lambda observations: jnp.broadcast_to(parameters, (observations["observation"].shape[0], 1))


def constant_policy(environment, action=0.0, clip=None):
    """Returns it as a trained policy: what evaluation and videos need of one."""
    spec = environment_spec(environment)
    mapping = ActionMapping(spec.action_low, spec.action_high, clip)
    return TrainedPolicy(Constant(), jnp.float32(action), spec, mapping, ("observation",), {})
