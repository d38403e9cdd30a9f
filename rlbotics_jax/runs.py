"""Run directories: making one, finding one to resume, and taking the policy out of one."""

from __future__ import annotations

import json
import math
import platform
import shutil
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
from jaxtyping import PyTree

from rlbotics_jax.algorithms import hyperparameters_of, make_algorithm
from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.checkpoint import FOLDER, Checkpoints
from rlbotics_jax.config import Config, ConfigError, load_config, save_config
from rlbotics_jax.envs.spec import ActionMapping, EnvironmentSpec
from rlbotics_jax.policy import TrainedPolicy
from rlbotics_jax.types import TrainState

CONFIG_FILE = "config.json"
POLICY_FILE = "policy.onnx"


def create_run(config: Config, spec: EnvironmentSpec, environment_class: str) -> Path | None:
    """Makes `log_dir/experiment/YYYY-mm-dd_HH-MM-SS` and writes config.json into it.

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
    parent = Path(logger.log_dir) / logger.experiment
    name = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    run = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        run = _first_free(parent, name)
        if logger.log_config:
            recorded = {**spec.to_dict(), "class": environment_class}
            save_config(config, run / CONFIG_FILE, versions=_versions(), environment=recorded)
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
    if not any(run.parent.iterdir()):
        run.parent.rmdir()


def run_config(run: str | Path) -> Config:
    """Returns the config of a run directory.

    Raises:
        FileNotFoundError: where there is no run.
    """
    return load_config(_run_file(run, CONFIG_FILE))


def load_policy(run: str | Path, which: str | None = None, iteration: int | None = None) -> TrainedPolicy:
    """Returns the policy of a run directory. Neither the environment nor its simulator is needed.

    Args:
        run: the run directory.
        which: "best", "last", or None for the best where there is one.
        iteration: the checkpoint; None is the latest.

    Raises:
        FileNotFoundError: where there is no run or no checkpoint.
        ValueError: where the best policy is asked for, but too few episodes ended for there to be one.
    """
    config = run_config(run)
    spec = EnvironmentSpec.from_dict(recorded_environment(run))
    algorithm = make_algorithm(config.runner, spec.num_actions)
    saved = _iterations(Path(run))
    if not saved:
        raise FileNotFoundError(f"'{run}' has no checkpoint in '{FOLDER}'; it ended before its first was written.")
    like = jax.eval_shape(lambda: _initial_policies(algorithm, config, spec))
    iteration = saved[-1] if iteration is None else iteration
    checkpoints = Checkpoints(run)
    try:
        policies, summary = checkpoints.policy(iteration, like), checkpoints.summary(iteration)
    finally:
        checkpoints.close()
    if which == "best" and summary["best_score"] is None:
        raise ValueError(f"'{run}' has no best policy: too few episodes ended. Use the last one.")
    return choose_policy(config, algorithm, spec, policies, {**summary, "iteration": iteration}, which)


def choose_policy(
    config: Config,
    algorithm: Algorithm,
    spec: EnvironmentSpec,
    policies: PyTree,
    summary: dict[str, Any],
    which: str | None = None,
) -> TrainedPolicy:
    """Returns the best or the last policy, ready to drive this config's environment.

    Args:
        config, algorithm, spec: of the run.
        policies: `saved_policies` of a state.
        summary: `checkpoint_summary` of the same state, and its `iteration`.
        which: "best", "last", or None: the best where there is one and `save_best` is true, else the last.
    """
    has_best = config.runner.logger.save_best and summary["best_score"] is not None
    which = which or ("best" if has_best else "last")
    iteration, score = {
        "best": (summary["best_iteration"], summary["best_score"]),
        "last": (summary["iteration"], None),
    }[which]
    described = spec.to_dict()
    return TrainedPolicy(
        algorithm=algorithm,
        parameters=policies[which],
        spec=spec,
        action_mapping=ActionMapping(spec.action_low, spec.action_high, config.env.clip_actions),
        groups=config.runner.obs_groups["actor"],
        metadata={
            "version": _versions()["rlbotics-jax"],
            "task": config.env.id,
            "which": which,
            "iteration": iteration,
            "score": score,
            "dt": spec.dt,
            "action_low": described["action_low"],
            "action_high": described["action_high"],
            "clip_actions": config.env.clip_actions,
        },
    )


def recorded_environment(run: str | Path) -> dict[str, Any]:
    """Returns what config.json records of the environment: its spec, and its `class`."""
    return json.loads(_run_file(run, CONFIG_FILE).read_text())["environment"]


def export(run: str | Path, output: str | Path | None = None, which: str | None = None) -> Path:
    """Writes a run's policy as ONNX, by default to `policy.onnx` in the run. See `load_policy` for the errors."""
    return load_policy(run, which).export(output or Path(run) / POLICY_FILE)


def find_checkpoint(resume: str, log_dir: str | Path | None, environment_class: str) -> tuple[Path, int]:
    """Returns the run directory and the iteration that `runner.logger.resume` names.

    `last` is the latest run in `log_dir` and `best` the one with the highest score, among the runs of this environment
    class and each at its latest checkpoint; otherwise the name of a run or a path to one, or to one checkpoint of it.

    Raises:
        ConfigError: where there is none, or the one that is named trained another task.
    """
    path, iteration = Path(resume), None
    if path.parent.name == FOLDER and path.is_dir() and path.name.isdigit():
        path, iteration = path.parents[1], int(path.name)
    runs = _runs(Path(log_dir)) if log_dir else []
    if resume in ("last", "best"):
        runs = [run for run in runs if _environment_class(run) == environment_class]
        if resume == "best":
            scores = {run: _best_score(run) for run in runs}
            runs = sorted((run for run in runs if scores[run] is not None), key=scores.__getitem__)
        candidates = runs[-1:]
    else:
        candidates = [path] if path.is_dir() else [run for run in runs if run.name == resume][-1:]
    for run in candidates:
        if not (iterations := _iterations(run)):
            continue
        if (trained := _environment_class(run)) not in (environment_class, None):
            raise ConfigError(
                "runner.logger.resume", f"'{run}' trained {trained}, this config trains {environment_class}"
            )
        return run, iterations[-1] if iteration is None else iteration
    raise ConfigError(
        "runner.logger.resume",
        f"{resume!r} names no run of this task with a checkpoint; allowed are last, best, the name of a run in "
        f"{str(log_dir)!r}, or a path to one",
    )


def saved_policies(algorithm: Algorithm, state: TrainState) -> PyTree:
    """Returns what a checkpoint keeps for export: the last and the best policy's parameters."""
    return {"last": algorithm.policy_parameters(state.shared.algorithm), "best": state.shared.best.parameters}


def checkpoint_summary(state: TrainState, seconds: float) -> dict[str, Any]:
    """Returns the numbers that a checkpoint keeps as JSON."""
    best = state.shared.best
    score = float(best.score)
    return {
        "best_score": score if math.isfinite(score) else None,
        "best_iteration": int(best.iteration),
        "wall_time": seconds,
    }


def _initial_policies(algorithm: Algorithm, config: Config, spec: EnvironmentSpec) -> PyTree:
    hyperparameters = hyperparameters_of(config.runner.algorithm)
    state = algorithm.init(jax.random.key(0), spec.example_observations(), hyperparameters)
    parameters = algorithm.policy_parameters(state)
    return {"last": parameters, "best": parameters}


def _runs(log_dir: Path) -> list[Path]:
    """Returns the runs of all experiments that have a checkpoint, the oldest first: their names are times."""
    return sorted((folder.parent for folder in log_dir.glob(f"*/*/{FOLDER}") if _iterations(folder.parent)), key=_age)


def _age(run: Path) -> tuple[str, int]:
    """Orders runs by the second in their name, then by the number that tells runs of one second apart."""
    second, number = run.name[:19], run.name[20:]
    return second, int(number) if number.isdigit() else 0


def _environment_class(run: Path) -> str | None:
    """Returns the import path of the environment that a run trained; None where it was not recorded."""
    return recorded_environment(run).get("class") if (run / CONFIG_FILE).is_file() else None


def _iterations(run: Path) -> list[int]:
    folder = run / FOLDER
    if not folder.is_dir():
        return []
    checkpoints = Checkpoints(run)
    iterations = checkpoints.iterations()
    checkpoints.close()
    return iterations


def _best_score(run: Path) -> float | None:
    checkpoints = Checkpoints(run)
    score = checkpoints.summary(checkpoints.iterations()[-1])["best_score"]
    checkpoints.close()
    return score


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


def _run_file(run: str | Path, name: str) -> Path:
    path = Path(run) / name
    if not path.is_file():
        raise FileNotFoundError(
            f"'{run}' is no run directory that can be read: it has no {name} (runner.logger.log_config writes it)."
        )
    return path


def _versions() -> dict[str, str]:
    """Returns the versions that a run depends on."""
    versions = {"python": platform.python_version()}
    for package in ("rlbotics-jax", "jax", "jaxlib", "flax", "optax", "mujoco", "mujoco-mjx"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions
