"""Videos: a deterministic episode of one environment as an MP4 file, and one beside each checkpoint of a run."""

from __future__ import annotations

import functools
import math
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.compilation import jit
from rlbotics_jax.envs.base import Environment
from rlbotics_jax.envs.vectorize import VectorizedEnvironment, VectorizedState, vectorize
from rlbotics_jax.evaluation import episode_key
from rlbotics_jax.mp4 import write_mp4
from rlbotics_jax.policy import TrainedPolicy
from rlbotics_jax.rendering import RenderingError

MAX_FRAMES_PER_SECOND = 30
CHUNK_SECONDS = 1.0
CHUNK_BYTES = 64 * 2**20
"""Bounds on the states that are simulated before they are drawn: seconds of video, and bytes."""

TRAINING_SIZE = (320, 240)
"""Width and height of the videos of a run. Drawn by Mesa on the training's own two cores, the 10 s of a cart-pole
episode take 1.8 s, and 4.1 s at twice the size."""


class Recording(NamedTuple):
    """A recorded episode: where the video is, the undiscounted sum of its rewards, and its number of steps."""

    path: Path
    episode_return: float
    length: int


class RecordingCancelled(Exception):
    """A recording was told to stop. Nothing is left of it."""


def record_episode(
    policy: TrainedPolicy,
    environment: Environment,
    path: str | Path,
    *,
    seed: int = 0,
    width: int = 640,
    height: int = 480,
    cancelled: Callable[[], bool] = lambda: False,
) -> Recording:
    """Runs one deterministic episode and writes it as an MP4 file: the one of `evaluate(policy, environment, 1, seed)`.

    The video runs in real time, with at most 30 frames a second: every k-th step is drawn. Only a second of states is
    held at a time, however long the episode is. The file appears whole at the end, or not at all.

    Args:
        policy: the policy.
        environment: a pure environment with the optional member `renderer`, see `envs.base.Environment`.
        path: the file; its folder is created.
        seed: of the episode's start.
        width, height: of the picture, in pixels; even.
        cancelled: asked before every frame whether to give up.

    Raises:
        RenderingError: the environment has no `renderer`, or nothing can be drawn on this machine.
        RecordingCancelled: `cancelled` said so.
        ImportError: the encoder is not installed.
        OSError: the file cannot be written.
        ValueError: an odd width or height, or a picture that is no uint8 (height, width, 3).
    """
    name = type(environment).__name__
    if (renderer := getattr(environment, "renderer", None)) is None:
        raise RenderingError(
            f"{name} has no member `renderer(width, height)`, which a video needs; see rlbotics_jax.envs.Environment."
        )
    vectorized = vectorize(environment, 1, clip_actions=policy.action_mapping.clip)
    every = _steps_per_frame(environment.dt)
    episode_return, length = 0.0, 0
    frames_per_second = 1.0 / (every * environment.dt)
    with renderer(width, height) as draw, write_mp4(Path(path), width, height, frames_per_second) as write:
        for states, rewards in _episode(policy, vectorized, every, seed):
            episode_return, length = episode_return + float(np.sum(rewards)), length + len(rewards)
            for state in states:
                if cancelled():
                    raise RecordingCancelled
                write(_checked(draw(state), name, width, height))
    return Recording(Path(path), episode_return, length)


class VideoRecorder:
    """Records an episode beside each checkpoint, one at a time, in a background thread.

    Every episode starts from the same state, so that the videos of a run compare. A failure (no OpenGL, no encoder, a
    full disk) is warned of once and ends the recording, never the training.
    """

    def __init__(
        self, folder: Path, environment: Environment, seed: int = 0, is_stopping: Callable[[], bool] = lambda: False
    ):
        """Makes nothing yet.

        Args:
            folder: of the videos.
            environment: the pure environment to show.
            seed: of the episode's start.
            is_stopping: whether the run was told to stop and has no time for videos; asked before every frame.
        """
        self._folder, self._environment, self._seed, self._is_stopping = folder, environment, seed, is_stopping
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self._failure: str | None = None
        self._off = False

    def record(self, policy: TrainedPolicy, iteration: int) -> None:
        """Begins the video `iteration_<number>.mp4`, after waiting for the one before.

        Args:
            policy: its parameters must outlive the call: a copy, where the train state is donated.
            iteration: names the file.
        """
        self._wait()
        if not self._off and not self._gives_up():
            device = jax.config.jax_default_device  # of this thread, which a new one does not inherit
            self._thread = threading.Thread(target=self._run, args=(policy, iteration, device), name="video")
            self._thread.start()

    def close(self) -> None:
        """Waits for the last video."""
        self._wait()

    def _gives_up(self) -> bool:
        return self._cancelled.is_set() or self._is_stopping()

    def _wait(self) -> None:
        """Waits until nothing is being recorded, and warns of what failed."""
        if self._thread is not None:
            try:
                self._thread.join()
            except BaseException:  # Ctrl-C: whoever does not wait any longer wants no video
                self._cancelled.set()
                raise
            self._thread = None
        if self._failure is not None and not self._off:
            self._off = True
            warnings.warn(f"{self._failure}; training goes on without videos.", stacklevel=3)

    def _run(self, policy: TrainedPolicy, iteration: int, device: jax.Device | None) -> None:
        """Records, in the background thread."""
        path = self._folder / f"iteration_{iteration:06d}.mp4"
        try:
            with jax.default_device(device):
                width, height = TRAINING_SIZE
                record_episode(
                    policy,
                    self._environment,
                    path,
                    seed=self._seed,
                    width=width,
                    height=height,
                    cancelled=self._gives_up,
                )
        except RecordingCancelled:
            pass
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0].rstrip(".")
            self._failure = f"The video of iteration {iteration} failed ({type(error).__name__}: {reason})"


def _steps_per_frame(dt: float) -> int:
    """Returns the least number of steps that a frame may last; a hair more than 30 frames a second are 30."""
    return max(1, math.ceil(1.0 / (MAX_FRAMES_PER_SECOND * dt) - 1e-6))


def _episode(
    policy: TrainedPolicy, environment: VectorizedEnvironment, every: int, seed: int
) -> Iterator[tuple[Iterator[PyTree], Float[np.ndarray, " S"]]]:
    """Yields one episode in chunks: the states to be drawn, and the rewards of the S steps.

    Drawn is the state before every `every`-th step; the one in which the episode ends is replaced by the next
    episode's first.
    """
    reset, run = _programs(policy.algorithm, environment, every)
    state, ended = reset(episode_key(seed)), False
    while not ended:
        state, chunk = run(policy.parameters, state)
        states, rewards, done = jax.device_get(chunk)
        ended = bool(done.any())
        length = int(np.argmax(done)) + 1 if ended else len(done)
        # Drawn before the next chunk is simulated: the caller's loop runs inside this one.
        yield (
            (jax.tree.map(lambda leaf, i=i: leaf[i], states) for i in range(math.ceil(length / every))),
            rewards[:length],
        )


@functools.lru_cache(maxsize=8)
def _programs(
    algorithm: Algorithm, environment: VectorizedEnvironment, every: int
) -> tuple[Callable[[Array], VectorizedState], Callable[[PyTree, VectorizedState], tuple]]:
    """Returns the compiled functions key -> state and (parameters, state) -> (state, (states, rewards, done)).

    The second one runs F frames of `every` steps; the states (F, ...) are those before each frame, rewards and done are
    (F * every,).
    """
    example = jax.eval_shape(environment.reset, jax.random.key(0)).current
    state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(example))
    seconds = every * environment.environment.dt
    frames = max(1, min(int(CHUNK_SECONDS / seconds), CHUNK_BYTES // state_bytes))

    def run(parameters: PyTree, state: VectorizedState) -> tuple[VectorizedState, tuple[PyTree, Array, Array]]:
        act = algorithm.policy(parameters)

        def step(state: VectorizedState, _: None) -> tuple[VectorizedState, tuple[Float[Array, ""], Bool[Array, ""]]]:
            state, timestep = environment.step(state, act(state.observations))
            return state, (timestep.rewards[0], (timestep.terminated | timestep.truncated)[0])

        def frame(state: VectorizedState, _: None) -> tuple[VectorizedState, tuple]:
            drawn = jax.tree.map(lambda leaf: leaf[0], state.current)
            state, (rewards, done) = jax.lax.scan(step, state, None, length=every)
            return state, (drawn, rewards, done)

        state, (drawn, rewards, done) = jax.lax.scan(frame, state, None, length=frames)
        return state, (drawn, rewards.reshape(-1), done.reshape(-1))

    # Compiling is most of the work: 6 s instead of 11 s for the cart-pole, whose 1000 steps take 0.03 s either way.
    return jit(environment.reset, optimize=False), jit(run, optimize=False)


def _checked(picture: np.ndarray, name: str, width: int, height: int) -> np.ndarray:
    """Returns the picture of an environment's own renderer, if it is one."""
    picture = np.asarray(picture)
    if picture.dtype != np.uint8 or picture.shape != (height, width, 3):
        raise ValueError(
            f"{name}.renderer drew {picture.dtype} {picture.shape}; required: uint8 ({height}, {width}, 3)."
        )
    return picture
