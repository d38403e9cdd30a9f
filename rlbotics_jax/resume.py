"""Resuming: which checkpoint `runner.logger.resume` names, and how far the run goes on from there.

A resumed run has a directory of its own; the old one stays as it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from pathlib import Path

from rlbotics_jax.checkpoint import FOLDER, CheckpointError, Checkpoints
from rlbotics_jax.config import Config, ConfigError
from rlbotics_jax.registry import nearest
from rlbotics_jax.runs import recorded

KEY = "runner.logger.resume"

_SEARCHED = ("last", "best", "auto")


@dataclasses.dataclass(frozen=True)
class Resume:
    """A checkpoint that training goes on from.

    Attributes:
        run: its run directory.
        iteration: the iterations that it has completed.
        last_iteration: the iterations after which the resumed run ends.
    """

    run: Path
    iteration: int
    last_iteration: int

    @property
    def checkpoint(self) -> Path:
        """The checkpoint's own folder, which `runner.logger.resume` may name."""
        return self.run / FOLDER / str(self.iteration)

    @property
    def remaining(self) -> int:
        """The iterations that are left; none or fewer where `auto` finds the run complete."""
        return self.last_iteration - self.iteration

    def record(self, config: Config) -> Config:
        """Returns the config that goes on just so when it is run again: `last` and `auto` will mean another run then.

        Raises:
            ConfigError: where no iteration remains.
        """
        runner = config.runner
        logger = runner.logger.replace(resume=str(self.checkpoint))
        return config.replace(
            runner=runner.replace(logger=logger, num_learning_iterations=self.remaining, init_from=None)
        )


def find_checkpoint(config: Config, environment_class: str) -> Resume | None:
    """Returns the checkpoint that `runner.logger.resume` names; None where the run starts afresh.

    Of the runs of this environment class in log_dir, each at its latest whole checkpoint:

    - `last`: the newest run, by the time in its name.
    - `best`: the one with the highest score; where none has a score the newest, with a warning.
    - `auto`: the newest run of this experiment, or None where there is none.

    Any other value is the name of a run in log_dir, or the path of a run, or of one checkpoint of it, anywhere.
    `auto` goes on until `runner.num_learning_iterations` are complete, all others for that many more.

    Args:
        config: the whole config.
        environment_class: the import path of the environment's class.

    Raises:
        ConfigError: where there is none, it cannot be read, or it trained another task.
    """
    runner, resume = config.runner, config.runner.logger.resume
    if resume is None:
        return None
    if resume in _SEARCHED:
        runs = [run for run in _runs(config) if _environment_class(run) == environment_class]
        if resume == "auto":
            runs = [run for run in runs if run.parent.name == runner.logger.experiment]
        found = _last_whole(_by_score(runs) if resume == "best" else runs)
        if found is None and resume != "auto":
            raise _no_run(KEY, resume, config)
    else:
        found = locate(KEY, resume, config)
        if (trained := _environment_class(found[0])) not in (environment_class, None):
            raise ConfigError(KEY, f"'{found[0]}' trained {trained}, this config trains {environment_class}")
    if found is None:
        return None
    run, iteration = found
    total = runner.num_learning_iterations
    return Resume(run, iteration, total if resume == "auto" else iteration + total)


def locate(key: str, name: str, config: Config) -> tuple[Path, int]:
    """Returns the run and the iteration that a name of a run in log_dir means, or the path of a run or a checkpoint.

    A run is taken at its latest whole checkpoint; of several with this name, in this experiment, else the newest one.

    Args:
        key: the config's key that gives the name, for errors.

    Raises:
        ConfigError: where there is none, or it cannot be read.
    """
    run, iteration = Path(name), None
    if run.parent.name == FOLDER and run.name.isdigit():
        run, iteration = run.parents[1], int(run.name)
    if not run.is_dir():
        named = [other for other in _runs(config) if name in (other.name, f"{other.parent.name}/{other.name}")]
        named.sort(key=lambda other: other.parent.name == config.runner.logger.experiment)
        run = named[-1] if named else run
    checkpoints = Checkpoints(run)
    if not (saved := checkpoints.iterations()):
        raise _no_run(key, name, config)
    if iteration is None:
        iteration = checkpoints.latest()
        if iteration is None:
            raise ConfigError(key, f"none of the checkpoints of '{run}' is whole")
    elif iteration not in saved:
        raise ConfigError(key, f"'{run}' has no checkpoint {iteration}, only {', '.join(map(str, saved))}")
    else:
        try:
            checkpoints.verify(iteration)
        except CheckpointError as error:
            raise ConfigError(key, str(error)) from error
    return run, iteration


def _runs(config: Config) -> list[Path]:
    """Returns the runs in log_dir that have a checkpoint, the oldest first: their names are times."""
    log_dir = config.runner.logger.log_dir
    folders = Path(log_dir).glob(f"*/*/{FOLDER}") if log_dir else ()
    return sorted((folder.parent for folder in folders if Checkpoints(folder.parent).iterations()), key=_age)


def _age(run: Path) -> tuple[str, int]:
    """Orders runs by the second in their name, then by the number that tells runs of one second apart."""
    second, number = run.name[:19], run.name[20:]
    return second, int(number) if number.isdigit() else 0


def _by_score(runs: list[Path]) -> list[Path]:
    """Returns the runs with a score, the lowest first; where none has one all of them, with a warning."""
    scores = {run: score for run in runs if (score := _score(run)) is not None}
    if runs and not scores:
        warnings.warn(f"{KEY} is best, but no run of this task has a best policy yet: the last is taken.", stacklevel=3)
    return sorted(scores, key=scores.__getitem__) or runs


def _score(run: Path) -> float | None:
    """Returns the score of the best policy, from the latest checkpoint that tells it."""
    checkpoints = Checkpoints(run)
    for iteration in reversed(checkpoints.iterations()):
        with contextlib.suppress(CheckpointError):
            return checkpoints.summary(iteration)["best_score"]
    return None


def _last_whole(runs: list[Path]) -> tuple[Path, int] | None:
    """Returns the last of the runs that has a whole checkpoint, and its iteration."""
    for run in reversed(runs):
        if (iteration := Checkpoints(run).latest()) is not None:
            return run, iteration
    return None


def _environment_class(run: Path) -> str | None:
    """Returns the import path of the environment that a run trained; None where it was not recorded."""
    return recorded(run).get("environment", {}).get("class")


def _no_run(key: str, name: str, config: Config) -> ConfigError:
    log_dir = config.runner.logger.log_dir
    allowed = "the name of a run" + (f" in {str(log_dir)!r}" if log_dir else "") + ", or a path to one"
    names = [run.name for run in _runs(config)]
    if key == KEY:
        allowed, names = f"{', '.join(_SEARCHED)}, {allowed}", [*_SEARCHED, *names]
    hint = f"; the nearest is {nearest(name, names)!r}" if names and name not in names else ""
    return ConfigError(key, f"{name!r} names no run of this task with a checkpoint; allowed are {allowed}{hint}")
