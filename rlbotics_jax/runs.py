"""Run directories: making one, and reading what is in one without its environment."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import shutil
import subprocess
import warnings
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from rlbotics_jax.algorithms import make_algorithm
from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.checkpoint import FOLDER, Checkpoints
from rlbotics_jax.config import Config, ConfigError, load_config, save_config
from rlbotics_jax.envs.spec import EnvironmentSpec
from rlbotics_jax.history import read_history
from rlbotics_jax.policy import TrainedPolicy
from rlbotics_jax.snapshot import choose_policy, policies_like

CONFIG_FILE = "config.json"
POLICY_FILE = "policy.onnx"


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run directory holds.

    Attributes:
        directory: the run directory.
        config: its whole config.
        policy: the best policy, or the last, as `load_policy`.
        history: its metrics, as `TrainResult.history`; empty where it wrote no metrics.jsonl.
        summary: of its latest checkpoint: `iteration`, `env_steps`, `wall_time` (s), `best_score`, `best_iteration`;
            and who the run is, as `run_identity`.
    """

    directory: Path
    config: Config
    policy: TrainedPolicy
    history: dict[str, np.ndarray]
    summary: dict[str, Any]


def create_run(config: Config, spec: EnvironmentSpec, environment_class: str) -> Path | None:
    """Makes `log_dir/experiment/YYYY-mm-dd_HH-MM-SS` and writes config.json into it; returns its absolute path.

    Two runs of the same second get different directories. Returns None where the config asks for nothing to be written.

    Args:
        config: the whole config.
        spec: the environment's spec, recorded for export.
        environment_class: the environment's import path, recorded because an object given to `train` is not the task
            that `config.env` names.

    Raises:
        ConfigError: where the directory cannot be made or written.
    """
    logger = config.runner.logger
    if not logger.enabled or logger.log_dir is None:
        return None
    parent = Path(logger.log_dir).absolute() / logger.experiment
    name = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    run = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        run = _first_free(parent, name)
        if logger.log_config:
            described = {**spec.to_dict(), "class": environment_class}
            save_config(config, run / CONFIG_FILE, versions=_versions(), environment=described)
    except OSError as error:
        if run is not None:
            discard_run(run)
        raise ConfigError(
            "runner.logger.log_dir",
            f"{str(logger.log_dir)!r} cannot be written ({error.strerror}); name a folder that can, or null to write "
            "nothing",
        ) from error
    return run


def discard_run(run: Path) -> None:
    """Removes a run directory in which nothing was trained, and its experiment's folder where that is left empty."""
    shutil.rmtree(run, ignore_errors=True)
    with contextlib.suppress(OSError):  # it is not empty
        run.parent.rmdir()


def run_config(run: str | Path) -> Config:
    """Returns the config of a run directory.

    Raises:
        FileNotFoundError: where there is no run.
        ConfigError: where its config.json cannot be read.
    """
    return load_config(_run_file(run, CONFIG_FILE))


def load_run(run: str | Path, which: str | None = None) -> Run:
    """Returns what a run directory holds. Neither the environment nor its simulator is needed.

    Args:
        run: the run directory.
        which: the policy: "best", "last", or None for the best where there is one.

    Raises:
        FileNotFoundError, ValueError: as `load_policy`; also where the metrics cannot be read.
    """
    config, policy, summary = _load(run, which, None)
    try:
        history = read_history(run)
    except FileNotFoundError:
        history = {}
    return Run(Path(run), config, policy, history, summary)


def load_policy(run: str | Path, which: str | None = None, iteration: int | None = None) -> TrainedPolicy:
    """Returns the policy of a run directory. Neither the environment nor its simulator is needed.

    Args:
        run: the run directory.
        which: "best", "last", or None for the best where there is one.
        iteration: the checkpoint; None is the latest whole one.

    Raises:
        FileNotFoundError: where there is no run or no checkpoint.
        ValueError: where the best policy is asked for, but too few episodes ended for there to be one, or where
            config.json or the checkpoint cannot be read.
    """
    return _load(run, which, iteration)[1]


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """One checkpoint of a run directory, and what its leaves are read with."""

    config: Config
    spec: EnvironmentSpec
    algorithm: Algorithm
    checkpoints: Checkpoints
    iteration: int


def open_checkpoint(run: str | Path, iteration: int | None = None) -> SavedRun:
    """Returns a checkpoint of a run, to be read: the latest whole one where no iteration is given.

    Raises:
        FileNotFoundError: where there is no run or no checkpoint.
        ValueError: where config.json cannot be read.
    """
    config = run_config(run)
    spec = EnvironmentSpec.from_dict(recorded_environment(run))
    algorithm = make_algorithm(config.runner, spec.num_actions)
    checkpoints = Checkpoints(run)
    iteration = checkpoints.latest() if iteration is None else iteration
    if iteration is None:
        raise FileNotFoundError(f"'{run}' has no checkpoint in '{FOLDER}'; it ended before its first was written.")
    return SavedRun(config, spec, algorithm, checkpoints, iteration)


def recorded_config(run: str | Path) -> dict[str, Any]:
    """Returns what a run's config.json holds, as JSON values; nothing where it wrote none.

    Where it cannot be read this warns, since a run can be resumed without it.
    """
    path = Path(run) / CONFIG_FILE
    try:
        return _json_object(path) if path.is_file() else {}
    except ValueError as error:
        warnings.warn(f"{error} What it recorded is not compared.", stacklevel=2)
        return {}


def recorded_environment(run: str | Path) -> dict[str, Any]:
    """Returns what config.json records of the environment: its spec, and its `class`.

    Raises:
        FileNotFoundError: where there is no run.
        ValueError: where it cannot be read, or records none.
    """
    path = _run_file(run, CONFIG_FILE)
    environment = _json_object(path).get("environment")
    if not isinstance(environment, dict):
        raise ValueError(f"'{path}' records no environment, as `train` does: this is no run that can be read.")
    return environment


def _load(run: str | Path, which: str | None, iteration: int | None) -> tuple[Config, TrainedPolicy, dict[str, Any]]:
    """Returns a run's config, and the policy and the summary of one of its checkpoints."""
    saved = open_checkpoint(run, iteration)
    built = (saved.config, saved.algorithm, saved.spec)
    policies = saved.checkpoints.policy(saved.iteration, policies_like(*built))
    summary = saved.checkpoints.summary(saved.iteration)
    if which == "best" and summary["best_score"] is None:
        raise ValueError(f"'{run}' has no best policy: too few episodes ended. Use the last one.")
    return saved.config, choose_policy(*built, policies, summary, which, Path(run).absolute()), summary


def _first_free(parent: Path, name: str) -> Path:
    """Makes and returns `parent/name`, or `parent/name_k` with the smallest k that is free."""
    for k in range(1000):
        run = parent / (name if k == 0 else f"{name}_{k}")
        try:
            run.mkdir()
        except FileExistsError:
            continue
        return run
    raise OSError(0, "too many runs within one second")


def _json_object(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, or no JSON
        raise ValueError(f"'{path}' cannot be read ({error}).") from error
    if not isinstance(values, dict):
        raise ValueError(f"'{path}' cannot be read (it holds no JSON object).")
    return values


def _run_file(run: str | Path, name: str) -> Path:
    path = Path(run) / name
    if not path.is_file():
        raise FileNotFoundError(
            f"'{run}' is no run directory that can be read: it has no {name} (runner.logger.log_config writes it)."
        )
    return path


def _versions() -> dict[str, str]:
    """Returns the versions that a run depends on."""
    packages = ("rlbotics-jax", "jax", "jaxlib", "flax", "optax", "mujoco", "mujoco-mjx")
    versions = {"python": platform.python_version()} | {package: _version_of(package) for package in packages}
    if commit := _git_commit():
        versions["git_commit"] = commit
    return versions


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _git_commit() -> str | None:
    """Returns the commit of the working directory's repository, `-dirty` behind it where files differ; or None."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # it only looks
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None
