"""What a run does at the boundaries of its blocks: evaluate, save and film. None of it changes the training."""

from __future__ import annotations

from pathlib import Path

from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.checkpoint import Checkpoints
from rlbotics_jax.config import Config
from rlbotics_jax.envs import EnvironmentSpec, VectorizedEnvironment
from rlbotics_jax.evaluation import evaluate, summarize
from rlbotics_jax.policy import TrainedPolicy
from rlbotics_jax.runs import checkpoint_summary, choose_policy, saved_policies
from rlbotics_jax.types import TrainState
from rlbotics_jax.video import VideoRecorder

VIDEOS = "videos"


class Milestones:
    """The checkpoints, evaluations and videos of one run.

    Attributes:
        intervals: iterations between two of a kind; multiples of them are the run's boundaries.
    """

    def __init__(
        self,
        config: Config,
        algorithm: Algorithm,
        spec: EnvironmentSpec,
        environment: VectorizedEnvironment,
        run: Path | None,
    ):
        """Opens what is written into `run`; None writes nothing."""
        self._config, self._algorithm, self._spec, self._environment = config, algorithm, spec, environment.environment
        runner, logger = config.runner, config.runner.logger
        self.intervals = tuple(interval for interval in (logger.save_interval, runner.eval_interval) if interval)
        self._checkpoints = None if run is None else Checkpoints(run, logger.keep_last_n)
        self._videos = None
        if run is not None and logger.log_video:
            self._videos = VideoRecorder(run / VIDEOS, self._environment, runner.seed)
        self._saved: int | None = None

    def evaluation(self, iteration: int, state: TrainState) -> dict[str, float]:
        """Returns `Evaluation/*` of the policy after an iteration; nothing where no evaluation is due.

        Every evaluation starts from the same initial states, the config's seed, so that two of them can be compared.
        """
        interval, runner = self._config.runner.eval_interval, self._config.runner
        if not interval or iteration % interval:
            return {}
        results = evaluate(self._policy(iteration, state), self._environment, runner.eval_episodes, runner.seed)
        return {f"Evaluation/{name}": value for name, value in summarize(results).items()}

    def save(self, iteration: int, state: TrainState, seconds: float) -> None:
        """Writes a checkpoint, and a video where the config asks for it, in the background, where they are due.

        Args:
            iteration, state: completed iterations, and the state after them; the caller's own copy.
            seconds: how long the run has been trained.
        """
        if iteration % self._config.runner.logger.save_interval == 0:
            self._save(iteration, state, seconds)

    def finish(self, iteration: int, state: TrainState, seconds: float, in_a_hurry: bool) -> None:
        """Writes the last checkpoint, and the last video unless the run was told to stop."""
        if iteration != self._saved:
            self._save(iteration, state, seconds, film=not in_a_hurry)

    def close(self, in_a_hurry: bool = False) -> None:
        """Waits for what is being written; a video is given up where the run was told to stop."""
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self._videos is not None:
            self._videos.close(wait=not in_a_hurry)

    def _save(self, iteration: int, state: TrainState, seconds: float, film: bool = True) -> None:
        if self._checkpoints is None:
            return
        self._saved = iteration
        summary = checkpoint_summary(state, seconds)
        self._checkpoints.save(iteration, state, saved_policies(self._algorithm, state), summary)
        if self._videos is not None and film:
            self._videos.record(self._policy(iteration, state), iteration)

    def _policy(self, iteration: int, state: TrainState) -> TrainedPolicy:
        """Returns the policy as it is now."""
        summary = {**checkpoint_summary(state, 0.0), "iteration": iteration}
        return choose_policy(
            self._config, self._algorithm, self._spec, saved_policies(self._algorithm, state), summary, "last"
        )
