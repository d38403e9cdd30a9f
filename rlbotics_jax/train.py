"""`train(config, env)`: the host loop around the compiled program. It dispatches, logs and saves; it learns nothing."""

from __future__ import annotations

import dataclasses
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rlbotics_jax.blocks import Block, run_blocks
from rlbotics_jax.build import build_algorithm, build_environment, initial_state, resolve_config
from rlbotics_jax.checkpoint import FOLDER as CHECKPOINTS
from rlbotics_jax.checkpoint import Checkpoints
from rlbotics_jax.compilation import enable_compilation_cache
from rlbotics_jax.config import Config
from rlbotics_jax.devices import resolve_device
from rlbotics_jax.display import make_display
from rlbotics_jax.envs import Environment, VectorizedEnvironment
from rlbotics_jax.interrupts import stop_on_interrupt
from rlbotics_jax.logger import RunLog
from rlbotics_jax.policy import TrainedPolicy
from rlbotics_jax.profiler import Profiler
from rlbotics_jax.program import make_program
from rlbotics_jax.registry import import_path
from rlbotics_jax.runs import (
    POLICY_FILE,
    checkpoint_summary,
    choose_policy,
    create_run,
    discard_run,
    find_checkpoint,
    saved_policies,
)
from rlbotics_jax.types import TrainState

Callback = Callable[[int, dict[str, float]], bool | None]


class TrainingError(RuntimeError):
    """Training cannot go on: gradients that stay non-finite, or a non-finite environment under `check_for_nan`."""


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What a training run leaves.

    Attributes:
        state: the final state; `train(config, state=result.state)` continues from it.
        history: one array a metric, one entry an iteration: `iteration`, `env_steps`, `wall_time` (s, interpolated
            inside a block of iterations), and the scalars under their logged names, such as `Episodes/mean_reward`.
            NaN where there was nothing to report.
        run_directory: where the run was written; None where nothing was to be written, or nothing was trained.
        policy: the best policy, or the last where too few episodes ended to name one (or `save_best` is false).
        interrupted: whether the run was stopped by Ctrl-C or SIGTERM.
        best_score: mean return of the best policy, or None.
    """

    state: TrainState
    history: dict[str, np.ndarray]
    run_directory: Path | None
    policy: TrainedPolicy
    interrupted: bool
    best_score: float | None


def train(
    config: Config | Mapping[str, Any] | str | os.PathLike,
    env: Environment | VectorizedEnvironment | None = None,
    *,
    callback: Callback | None = None,
    state: TrainState | None = None,
    compilation_cache: bool = True,
    profile: bool = False,
) -> TrainResult:
    """Trains a policy.

    Args:
        config: a Config, a mapping with the keys `env` and `runner`, or the name or path of a file.
        env: a pure environment, in place of the one that `config.env` names. The section `env` is then recorded, and
            only its `num_envs`, `device`, `clip_actions`, `init_at_random_ep_len` and `full_reset` are used.
        callback: called with (iteration, metrics) after every iteration, in order but late: iterations run in blocks.
            Returning True stops the run at the next block's end.
        state: continue from an earlier result's state for `num_learning_iterations` more. It stays usable.
        compilation_cache: keep compiled programs on disk for the next process.
        profile: write a trace of a few warm iterations into the run's folder, for TensorBoard and Perfetto.

    Returns:
        The result, also after Ctrl-C (with `interrupted`), which stops at the end of the running block.

    Raises:
        ConfigError: what is wrong with the config, before anything is compiled.
        ValueError: what is wrong with the environment.
        TrainingError: training cannot go on; what was learned until then is saved.
    """
    config = resolve_config(config)
    device = resolve_device(config.env.device)
    if compilation_cache:
        enable_compilation_cache()
    with jax.default_device(device), stop_on_interrupt() as stop:
        return _train(config, env, callback, state, profile, lambda: stop.requested)


def _train(
    config: Config,
    env: Any,
    callback: Callback | None,
    state: TrainState | None,
    profile: bool,
    interrupted: Callable[[], bool],
) -> TrainResult:
    runner, logger = config.runner, config.runner.logger
    if logger.log_video:
        warnings.warn("runner.logger.log_video: this version writes no videos; training goes on without.", stacklevel=3)
    config, environment = build_environment(config, env)
    algorithm, spec = build_algorithm(config, environment)
    environment_class = import_path(type(environment.environment))
    checkpoint = None
    if logger.resume is not None and state is None:
        checkpoint = find_checkpoint(logger.resume, logger.log_dir, environment_class)
        # Recorded as what it is now: "last" will be another one when config.json is run again.
        logger = logger.replace(resume=str(checkpoint[0] / CHECKPOINTS / str(checkpoint[1])))
        config = config.replace(runner=runner.replace(logger=logger))
    run = create_run(config, spec, environment_class)
    profiler = Profiler(run) if profile else None
    program = make_program(algorithm, environment, runner.num_steps_per_env)

    display = make_display(logger.log_interval if logger.enabled and runner.verbose else 0)
    log = RunLog(run, logger.log_metrics, display)
    checkpoints = None if run is None else Checkpoints(run, logger.keep_last_n)
    begun = stopped = False
    failure: BaseException | None = None
    try:
        log.compiling(
            f"Compiling for {jax.config.jax_default_device}: {config.env.id}, {environment.num_envs} environments."
        )
        started = time.perf_counter()
        state, seconds = initial_state(config, program, state, checkpoint)
        first = int(state.shared.iteration)
        log.begin(first, first + runner.num_learning_iterations, seconds)
        blocks = run_blocks(
            program.block,
            state,
            first,
            first + runner.num_learning_iterations,
            logger.save_interval,
            started,
            lambda: stopped or failure is not None or interrupted(),
            profiler and profiler.record,
        )
        for block in blocks:
            begun = True
            try:
                stopped |= _report(block, config, log, callback)
            except (Exception, KeyboardInterrupt) as error:
                failure = failure or error  # a failing callback too: what was learned is saved before it is raised
            if block.state is not None:
                state = block.state
                if checkpoints is not None:
                    summary = checkpoint_summary(state, log.seconds)
                    checkpoints.save(int(state.shared.iteration), state, saved_policies(algorithm, state), summary)
        was_interrupted = interrupted()
    finally:
        log.close()
        if checkpoints is not None:
            checkpoints.close()
        if profiler is not None:
            log.message(profiler.summary())
        if run is not None and not begun:  # nothing was trained, so there is nothing to find in it
            discard_run(run)
            run = None
    if failure is not None:
        raise failure

    summary = {**checkpoint_summary(state, log.seconds), "iteration": int(state.shared.iteration)}
    policy = choose_policy(config, algorithm, spec, saved_policies(algorithm, state), summary)
    if run is not None:
        _export(policy, run / POLICY_FILE, log)
    return TrainResult(state, log.arrays(), run, policy, was_interrupted, summary["best_score"])


def _report(block: Block, config: Config, log: RunLog, callback: Callback | None) -> bool:
    """Logs a block's iterations and calls the callback; returns whether it asked to stop.

    Raises:
        TrainingError: where the metrics show that training cannot go on.
    """
    stopped = False
    for iteration, metrics in log.block(block):
        if callback is not None:
            stopped |= bool(callback(iteration, metrics))
        rejected = metrics.get("Diagnostics/consecutive_rejected_updates", 0)
        limit = getattr(config.runner.algorithm, "max_rejected_updates", math.inf)
        if rejected >= limit:
            raise TrainingError(
                f"Iteration {iteration}: the last {rejected:.0f} mini-batch updates had non-finite gradients and were "
                f"rejected (runner.algorithm.max_rejected_updates is {limit}); lower runner.algorithm.learning_rate or "
                "look at the scale of rewards and observations."
            )
        if metrics["Diagnostics/invalid_steps"] > 0:
            broken = _broken(iteration, metrics)
            if config.runner.check_for_nan:
                raise TrainingError(f"{broken} Set runner.check_for_nan to false to reset such environments instead.")
            log.warn_once(f"{broken} Such environments are reset, and these steps left out.")
    return stopped


def _broken(iteration: int, metrics: dict[str, float]) -> str:
    """Returns the sentence that says what was not finite, and where."""
    sources = [name.partition("/")[2] for name, count in metrics.items() if name.startswith("NonFinite/") and count > 0]
    named = ", ".join(source for source in sources if source != "environment") or "unknown"
    return (
        f"Iteration {iteration}: {metrics['Diagnostics/invalid_steps']:.0f} steps were not valid; not finite: "
        f"{named}; one of the environments: {metrics['NonFinite/environment']:.0f}."
    )


def _export(policy: TrainedPolicy, path: Path, log: RunLog) -> None:
    """Writes policy.onnx. A missing package or a failed export costs the file, not the training."""
    started = time.perf_counter()
    try:
        policy.export(path)
    except (ImportError, RuntimeError, ValueError, OSError) as error:
        warnings.warn(f"No policy.onnx was written: {error}", stacklevel=4)
    else:
        which = policy.metadata["which"]
        log.message(f"Wrote {path} (the {which} policy) in {time.perf_counter() - started:.0f} s.")
