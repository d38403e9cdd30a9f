"""What a run does at the boundaries of its blocks: evaluate, save and film. None of it changes the training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.checkpoint import Checkpoints
from rlbotics_jax.config import Config
from rlbotics_jax.envs import EnvironmentSpec, VectorizedEnvironment
from rlbotics_jax.evaluation import evaluate, summarize
from rlbotics_jax.policy import TrainedPolicy
from rlbotics_jax.registry import import_path
from rlbotics_jax.snapshot import current_policy, run_identity, saved_policies, summarize_state
from rlbotics_jax.types import TrainState
from rlbotics_jax.video import VideoRecorder

VIDEOS = "videos"


class Milestones:
    """The checkpoints, evaluations and videos of one run.

    Attributes:
        save_interval: iterations between two checkpoints, 0 where none is written.
        eval_interval: iterations between two evaluations, 0 for none.
    """

    def __init__(
        self,
        config: Config,
        algorithm: Algorithm,
        spec: EnvironmentSpec,
        environment: VectorizedEnvironment,
        run: Path | None,
        is_stopping: Callable[[], bool],
    ):
        """Opens what is written into `run`; None writes nothing. A run that `is_stopping` has no time for videos."""
        runner, logger = config.runner, config.runner.logger
        self._config, self._algorithm, self._spec, self._environment = config, algorithm, spec, environment.environment
        self._identity = run_identity(config, import_path(type(self._environment)))
        self._checkpoints = self._videos = self._saved = None
        self.save_interval, self.eval_interval = 0, runner.eval_interval
        if run is not None:
            self.save_interval = logger.save_interval
            self._checkpoints = Checkpoints(run, logger.keep_last_n)
            if logger.log_video:
                self._videos = VideoRecorder(run / VIDEOS, self._environment, runner.seed, is_stopping)

    def evaluation(self, iteration: int, state: TrainState) -> dict[str, float]:
        """Returns `Evaluation/*` of the policy after an iteration; nothing where no evaluation is due.

        Every evaluation starts from the same initial states, drawn from the config's seed, so that they compare.
        """
        runner = self._config.runner
        if not self.eval_interval or iteration % self.eval_interval:
            return {}
        results = evaluate(self._policy(state), self._environment, runner.eval_episodes, runner.seed)
        return {f"Evaluation/{name}": value for name, value in summarize(results).items()}

    def save(self, iteration: int, state: TrainState, seconds: float, is_last: bool = False) -> None:
        """Writes a checkpoint in the background, and begins a video where the config asks for it.

        Args:
            iteration, state: completed iterations, and the state after them; the caller's own copy.
            seconds: how long the run has been trained.
            is_last: save whatever the interval says, unless it is saved.
        """
        if self._checkpoints is None or iteration == self._saved or (iteration % self.save_interval and not is_last):
            return
        self._saved = iteration
        summary = summarize_state(state) | {"wall_time": seconds} | self._identity
        self._checkpoints.save(iteration, state, saved_policies(self._algorithm, state), summary)
        if self._videos is not None:
            self._videos.record(self._policy(state), iteration)

    def close(self) -> None:
        """Waits for what is being written."""
        try:
            if self._checkpoints is not None:
                self._checkpoints.close()
        finally:
            if self._videos is not None:
                self._videos.close()

    def _policy(self, state: TrainState) -> TrainedPolicy:
        return current_policy(self._config, self._algorithm, self._spec, state, "last")
