"""Resuming: which checkpoint `runner.logger.resume` names, and how far the run goes on from there.

A resumed run has a directory of its own; the old one stays as it is. What a run is, `snapshot.run_identity`, is read
from its checkpoints: neither its folder's name nor its config.json matters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from pathlib import Path
from typing import Any

from rlbotics_jax.checkpoint import FOLDER, CheckpointError, Checkpoints, checkpoint_path, saved_iterations
from rlbotics_jax.config import Config, ConfigError
from rlbotics_jax.registry import nearest

KEY = "runner.logger.resume"

_SEARCHED = ("last", "best", "auto")

_IDENTITY = {"started", "environment_class", "seed"}
"""What a checkpoint must tell for its run to be found by a search."""


@dataclasses.dataclass(frozen=True)
class Resume:
    """A checkpoint that training goes on from.

    Attributes:
        run: its run directory, an absolute path.
        iteration: the iterations that it has completed.
        last_iteration: the iterations after which the resumed run ends.
        seed: of that run, where its checkpoint tells it.
    """

    run: Path
    iteration: int
    last_iteration: int
    seed: int | None = None

    @property
    def checkpoint(self) -> Path:
        """The checkpoint's own folder, which `runner.logger.resume` may name."""
        return checkpoint_path(self.run, self.iteration)

    @property
    def remaining(self) -> int:
        """The iterations that are left; none or fewer where `auto` finds the run complete."""
        return self.last_iteration - self.iteration

    def record(self, config: Config) -> Config:
        """Returns the config that goes on just so when it is run again: `last` and `auto` will mean another run then.

        A seed of null becomes the run's own, with which its evaluations begin in the same states as before.

        Raises:
            ConfigError: where no iteration remains.
        """
        runner = config.runner
        return config.replace(
            runner=runner.replace(
                logger=runner.logger.replace(resume=str(self.checkpoint)),
                num_learning_iterations=self.remaining,
                seed=self.seed if runner.seed is None else runner.seed,
                init_from=None,
            )
        )


def find_checkpoint(config: Config, environment_class: str) -> Resume | None:
    """Returns the checkpoint that `runner.logger.resume` names; None where the run starts afresh.

    Of the runs of this environment class in log_dir, at any depth, each at its latest whole checkpoint:

    - `last`: the one that began last.
    - `best`: the one with the highest score; where none has a score the last, with a warning.
    - `auto`: the last of this experiment, and of this seed where the config gives one, or None where there is none.

    A run whose checkpoints cannot be read, or do not tell what it is, is passed over. Any other value is the name of a
    run in log_dir, or the path of a run, or of one checkpoint of it, anywhere. `auto` goes on until
    `runner.num_learning_iterations` are complete, all others for that many more.

    Args:
        config: the whole config; a seed of null must not be drawn yet.
        environment_class: the import path of the environment's class.

    Raises:
        ConfigError: where there is none, it cannot be read, or it trained another task.
    """
    runner, resume = config.runner, config.runner.logger.resume
    if resume is None:
        return None
    if resume in _SEARCHED:
        found = _search(resume, config, environment_class)
        if found is None and resume != "auto":
            raise _no_run(KEY, resume, config)
    else:
        found = locate(KEY, resume, config)
    if found is None:
        return None
    run, iteration = found
    summary = Checkpoints(run).summary(iteration)
    if (trained := summary.get("environment_class", environment_class)) != environment_class:
        raise ConfigError(KEY, f"'{run}' trained {trained}, this config trains {environment_class}")
    total = runner.num_learning_iterations
    return Resume(run, iteration, total if resume == "auto" else iteration + total, summary.get("seed"))


def locate(key: str, name: str, config: Config) -> tuple[Path, int]:
    """Returns the run and the iteration that a name of a run in log_dir means, or the path of a run or a checkpoint.

    A name may begin with folders, as in experiment/run. A run is taken at its latest whole checkpoint; of several with
    this name, the one in this experiment, else the one that began last. The run's path is absolute.

    Args:
        key: the config's key that gives the name, for errors.

    Raises:
        ConfigError: where there is none, or it cannot be read.
    """
    run, iteration = Path(name).absolute(), None
    if run.parent.name == FOLDER and run.name.isdigit():
        run, iteration = run.parents[1], int(run.name)
    if not run.is_dir():
        parts = Path(name).parts
        named = [other for other in _runs(config) if other.parts[-len(parts) :] == parts]
        named.sort(key=lambda other: (other.parent == _experiment(config), _summary(other).get("started", 0.0)))
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


def _search(resume: str, config: Config, environment_class: str) -> tuple[Path, int] | None:
    """Returns the run, and its latest whole checkpoint, that `last`, `best` or `auto` means; or None."""
    if config.runner.logger.log_dir is None:
        return None
    wanted = {"environment_class": environment_class}
    if resume == "auto":
        runs = [folder.parent for folder in _experiment(config).glob(f"*/{FOLDER}")]
        wanted |= {} if config.runner.seed is None else {"seed": config.runner.seed}
    else:
        runs = _runs(config)
    told = {run: _summary(run) for run in runs}
    runs = [run for run, summary in told.items() if summary.keys() >= _IDENTITY and wanted.items() <= summary.items()]
    # Behind a link to it, such as one named latest, which will lead elsewhere later, comes the run itself.
    runs.sort(key=lambda run: (told[run]["started"], not run.is_symlink()))
    if resume == "best":
        runs = _by_score(runs, told)
    for run in reversed(runs):
        if (iteration := Checkpoints(run).latest()) is not None:
            return run, iteration
    return None


def _by_score(runs: list[Path], told: dict[Path, dict[str, Any]]) -> list[Path]:
    """Returns the runs with a score, the lowest first; where none has one all of them, with a warning."""
    scored = [run for run in runs if told[run].get("best_score") is not None]
    if runs and not scored:
        warnings.warn(f"{KEY} is best, but no run of this task has a best policy yet: the last is taken.", stacklevel=4)
    return sorted(scored, key=lambda run: told[run]["best_score"]) or runs


def _summary(run: Path) -> dict[str, Any]:
    """Returns what the latest checkpoint tells whose summary can be read; nothing, with a warning, where none can."""
    if not (saved := saved_iterations(run)):
        return {}
    checkpoints = Checkpoints(run)
    for iteration in reversed(saved):
        with contextlib.suppress(CheckpointError):
            return checkpoints.summary(iteration)
    warnings.warn(f"None of the checkpoints of '{run}' can be read. The run is passed over.", stacklevel=4)
    return {}


def _experiment(config: Config) -> Path:
    """Returns the folder of this config's own runs."""
    logger = config.runner.logger
    return Path(logger.log_dir).absolute() / logger.experiment


def _runs(config: Config) -> list[Path]:
    """Returns the runs in log_dir that have a checkpoint, at any depth; inside a run is none."""
    log_dir, runs = config.runner.logger.log_dir, []
    for name, folders, _ in os.walk(Path(log_dir).absolute(), followlinks=True) if log_dir else ():
        folder = Path(name)
        if FOLDER in folders and saved_iterations(folder):
            runs.append(folder)
            folders.clear()
        else:  # a link to a folder above would lead round in a circle
            real = folder.resolve()
            folders[:] = [name for name in folders if not real.is_relative_to((folder / name).resolve())]
    return runs


def _no_run(key: str, name: str, config: Config) -> ConfigError:
    log_dir = config.runner.logger.log_dir
    allowed = "the name of a run" + (f" in {str(log_dir)!r}" if log_dir else "") + ", or a path to one"
    names, of_this_task = [run.name for run in _runs(config)], ""
    if key == KEY:
        allowed, names = f"{', '.join(_SEARCHED)}, {allowed}", [*_SEARCHED, *names]
        of_this_task = " of this task" if name in _SEARCHED else ""
    hint = f"; the nearest is {nearest(name, names)!r}" if names and name not in names else ""
    return ConfigError(key, f"{name!r} names no run{of_this_task} with a checkpoint; allowed are {allowed}{hint}")
