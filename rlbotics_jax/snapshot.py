"""What a checkpoint keeps beside a run's whole state: the policies, and the numbers that tell what run it is."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import jax
from jaxtyping import PyTree

from rlbotics_jax import __version__
from rlbotics_jax.algorithms import hyperparameters_of
from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.config import Config, config_hash
from rlbotics_jax.counters import to_int
from rlbotics_jax.envs.spec import ActionMapping, EnvironmentSpec
from rlbotics_jax.policy import TrainedPolicy
from rlbotics_jax.types import TrainState


def saved_policies(algorithm: Algorithm, state: TrainState) -> PyTree:
    """Returns what a checkpoint keeps for export: the last and the best policy's parameters."""
    return {"last": algorithm.policy_parameters(state.shared.algorithm), "best": state.shared.best.parameters}


def run_identity(config: Config, environment_class: str) -> dict[str, Any]:
    """Returns what every checkpoint of a run tells, so that `runner.logger.resume` finds it by its checkpoints alone.

    That is `started`, when the run began: now (s since 1970, UTC); `environment_class`, its import path; and `seed`.
    """
    return {"started": time.time(), "environment_class": environment_class, "seed": config.runner.seed}


def summarize_state(state: TrainState) -> dict[str, Any]:
    """Returns how far a state is, and how good its best policy.

    A checkpoint keeps it as JSON, beside `run_identity` and `wall_time`, the seconds that the run has been trained.
    """
    best = state.shared.best
    score = float(best.score)
    return {
        "iteration": int(state.shared.iteration),
        "env_steps": to_int(state.shared.env_steps),
        "best_score": score if math.isfinite(score) else None,
        "best_iteration": int(best.iteration),
    }


def choose_policy(
    config: Config,
    algorithm: Algorithm,
    spec: EnvironmentSpec,
    policies: PyTree,
    summary: dict[str, Any],
    which: str | None = None,
    run: Path | None = None,
) -> TrainedPolicy:
    """Returns the best or the last policy, ready to drive this config's environment.

    Args:
        config, algorithm, spec: of the run.
        policies: `saved_policies` of a state.
        summary: `summarize_state` of the same state.
        which: "best", "last", or None: the best where there is one and `save_best` is true, else the last.
        run: the run's directory, whose name the metadata tells; None where it has none.
    """
    has_best = config.runner.logger.save_best and summary["best_score"] is not None
    which = which or ("best" if has_best else "last")
    iteration, score = {
        "best": (summary["best_iteration"], summary["best_score"]),
        "last": (summary["iteration"], None),
    }[which]
    return TrainedPolicy(
        algorithm=algorithm,
        parameters=policies[which],
        spec=spec,
        action_mapping=ActionMapping(spec.action_low, spec.action_high, config.env.clip_actions),
        groups=config.runner.obs_groups["actor"],
        metadata={
            # What a consumer of the action has still to do with it: nothing, unless the simulator says otherwise.
            "action_scale": [1.0] * spec.num_actions,
            "action_offset": [0.0] * spec.num_actions,
            **spec.metadata,
            "library": "rlbotics-jax",
            "version": __version__,
            "config_hash": config_hash(config),
            "run_name": None if run is None else f"{config.runner.logger.experiment}/{run.name}",
            "task": config.env.id,
            "which": which,
            "iteration": iteration,
            "score": score,
            "dt": spec.dt,
            "normalized": config.runner.actor.obs_normalization,
            "action_low": spec.action_low,
            "action_high": spec.action_high,
            "action_clip": config.env.clip_actions,
            "recurrent_states": {},
        },
    )


def current_policy(
    config: Config,
    algorithm: Algorithm,
    spec: EnvironmentSpec,
    state: TrainState,
    which: str | None = None,
    run: Path | None = None,
) -> TrainedPolicy:
    """Returns a state's best or last policy, as `choose_policy`."""
    return choose_policy(config, algorithm, spec, saved_policies(algorithm, state), summarize_state(state), which, run)


def policies_like(config: Config, algorithm: Algorithm, spec: EnvironmentSpec) -> PyTree:
    """Returns `saved_policies` of a run with abstract leaves. Needs no environment; nothing is computed."""
    parameters = jax.eval_shape(algorithm.policy_parameters, algorithm_state_like(config, algorithm, spec))
    return {"last": parameters, "best": parameters}


def algorithm_state_like(config: Config, algorithm: Algorithm, spec: EnvironmentSpec) -> Any:
    """Returns the algorithm's own state with abstract leaves. Needs no environment; nothing is computed."""
    hyperparameters = hyperparameters_of(config.runner.algorithm)
    return jax.eval_shape(lambda: algorithm.init(jax.random.key(0), spec.example_observations(), hyperparameters))
