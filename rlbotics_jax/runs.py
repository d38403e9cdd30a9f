"""Run directories: making one, finding one to resume, and taking the policy out of one."""

from __future__ import annotations

import dataclasses
import json
import platform
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


def create_run(config: Config, spec: EnvironmentSpec) -> Path | None:
    """Makes `log_dir/experiment/YYYY-mm-dd_HH-MM-SS` and writes config.json into it.

    Two runs of the same second get different directories. Returns None where the config asks for nothing to be written.

    Raises:
        ConfigError: where the directory cannot be made or written.
    """
    logger = config.runner.logger
    if not logger.enabled or logger.log_dir is None:
        return None
    parent = Path(logger.log_dir) / logger.experiment
    name = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        run = _first_free(parent, name)
        if logger.log_config:
            save_config(config, run / CONFIG_FILE, versions=_versions(), environment=dataclasses.asdict(spec))
    except OSError as error:
        raise ConfigError(
            "runner.logger.log_dir",
            f"{str(logger.log_dir)!r} cannot be written ({error.strerror}); name a folder that can, or null to write "
            "nothing",
        ) from error
    return run


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
    recorded = json.loads(_run_file(run, CONFIG_FILE).read_text())
    spec = EnvironmentSpec.from_dict(recorded["environment"])
    algorithm = make_algorithm(config.runner, spec.num_actions)
    checkpoints = Checkpoints(run)
    saved = checkpoints.iterations()
    if not saved:
        raise FileNotFoundError(f"'{run}' has no checkpoint in '{FOLDER}'; it ended before its first was written.")
    like = jax.eval_shape(lambda: _initial_policies(algorithm, config, spec))
    iteration = saved[-1] if iteration is None else iteration
    policies, summary = checkpoints.policy(iteration, like), checkpoints.summary(iteration)
    checkpoints.close()
    has_best = summary["best_score"] is not None
    if which == "best" and not has_best:
        raise ValueError(f"'{run}' has no best policy: too few episodes ended. Use the last one.")
    chosen = which or ("best" if has_best else "last")
    source = {"iteration": summary["best_iteration"] if chosen == "best" else iteration, "which": chosen}
    return make_policy(config, algorithm, spec, policies[chosen], {**source, "score": summary["best_score"]})


def make_policy(
    config: Config, algorithm: Algorithm, spec: EnvironmentSpec, parameters: PyTree, metadata: dict[str, Any]
) -> TrainedPolicy:
    """Returns the policy of the given parameters, as this config's environment is driven by it."""
    return TrainedPolicy(
        algorithm=algorithm,
        parameters=parameters,
        spec=spec,
        action_mapping=ActionMapping(spec.action_low, spec.action_high, config.env.clip_actions),
        groups=config.runner.obs_groups["actor"],
        metadata={"task": config.env.id, "dt": spec.dt, "version": _versions()["rlbotics-jax"], **metadata},
    )


def export(run: str | Path, output: str | Path | None = None, which: str | None = None) -> Path:
    """Writes a run's policy as ONNX, by default to `policy.onnx` in the run. See `load_policy` for the errors."""
    return load_policy(run, which).export(output or Path(run) / POLICY_FILE)


def find_checkpoint(resume: str, log_dir: str | Path | None) -> tuple[Path, int]:
    """Returns the run directory and the iteration that `runner.logger.resume` names.

    `last` is the latest run in `log_dir` and `best` the one with the highest score, each at its latest checkpoint;
    otherwise the name of a run or a path to one, or to one checkpoint of it.

    Raises:
        ConfigError: where there is none.
    """
    path = Path(resume)
    if path.parent.name == FOLDER and path.is_dir() and path.name.isdigit():
        return path.parents[1], int(path.name)
    runs = _runs(Path(log_dir)) if log_dir else []
    if resume == "last":
        candidates = runs[-1:]
    elif resume == "best":
        scores = {run: _best_score(run) for run in runs}
        candidates = sorted((run for run in runs if scores[run] is not None), key=scores.__getitem__)[-1:]
    else:
        candidates = [path] if path.is_dir() else [run for run in runs if run.name == resume][-1:]
    for run in candidates:
        if (iterations := _iterations(run)) != []:
            return run, iterations[-1]
    raise ConfigError(
        "runner.logger.resume",
        f"{resume!r} names no run with a checkpoint; allowed are last, best, the name of a run in {str(log_dir)!r}, or "
        "a path to one",
    )


def saved_policies(algorithm: Algorithm, state: TrainState) -> PyTree:
    """Returns what a checkpoint keeps for export: the last and the best policy's parameters."""
    return {"last": algorithm.policy_parameters(state.shared.algorithm), "best": state.shared.best.parameters}


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
    return run.name[:19], int(run.name[20:] or 0) if run.name[20:].isdigit() or not run.name[20:] else 0


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
        raise FileNotFoundError(f"'{run}' is no run directory: it has no {name}.")
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
