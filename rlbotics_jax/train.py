"""`train(config, env)`: the host loop around the compiled program. It dispatches, logs and saves; it learns nothing."""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Any

import jax
import numpy as np

from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.blocks import Block, run_blocks
from rlbotics_jax.build import build_algorithm, build_environment, initial_state, resolve_config, state_like
from rlbotics_jax.compatibility import check_fits
from rlbotics_jax.compilation import enable_compilation_cache
from rlbotics_jax.config import Config
from rlbotics_jax.curve import CURVE_FILE, write_learning_curve
from rlbotics_jax.devices import resolve_device
from rlbotics_jax.display import make_display
from rlbotics_jax.envs import Environment, EnvironmentSpec, VectorizedEnvironment
from rlbotics_jax.guards import Guards, TrainingError
from rlbotics_jax.history import earlier_history
from rlbotics_jax.interrupts import StopRequest, stop_on_interrupt
from rlbotics_jax.logger import RunLog
from rlbotics_jax.milestones import Milestones
from rlbotics_jax.policy import TrainedPolicy
from rlbotics_jax.profiler import Profiler
from rlbotics_jax.program import Program, make_program
from rlbotics_jax.registry import import_path
from rlbotics_jax.resume import Resume, find_checkpoint
from rlbotics_jax.runs import (
    CONFIG_FILE,
    POLICY_FILE,
    checkpoint_summary,
    choose_policy,
    create_run,
    discard_run,
    saved_policies,
)
from rlbotics_jax.transfer import find_transfer
from rlbotics_jax.types import TrainState

__all__ = ["TrainResult", "TrainingError", "train"]

Callback = Callable[[int, dict[str, float]], bool | None]


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What a training run leaves.

    Attributes:
        state: the final state; `train(config, state=result.state)` continues from it.
        history: one array a metric, one entry an iteration: `iteration`, `env_steps`, `wall_time` (s, interpolated
            inside a block of iterations), and the scalars under their logged names, such as `Episodes/mean_reward`.
            NaN where there was nothing to report. A resumed run's begins with the iterations before.
        run_directory: where the run was written; None where nothing was to be written, or nothing was trained.
        policy: the best policy, or the last where too few episodes ended to name one (or `save_best` is false).
        interrupted: the signal that stopped the run (SIGINT, which is Ctrl-C, SIGTERM or SIGUSR1), or None.
        best_score: mean return of the best policy, or None.
    """

    state: TrainState
    history: dict[str, np.ndarray]
    run_directory: Path | None
    policy: TrainedPolicy
    interrupted: Signals | None
    best_score: float | None


def train(
    config: Config | Mapping[str, Any] | str | os.PathLike,
    env: Environment | VectorizedEnvironment | None = None,
    *,
    callback: Callback | None = None,
    state: TrainState | None = None,
    init_from: str | os.PathLike | None = None,
    load: Sequence[str] | None = None,
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
        init_from: a run, or a checkpoint of one, of any task, that the first parameters are taken from; in place of
            `config.runner.init_from`.
        load: what is taken from it, such as ("actor", "normalizer"); in place of `config.runner.load`.
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
    given = {"init_from": None if init_from is None else os.fspath(init_from), "load": load}
    config = config.replace(runner=config.runner.replace(**{k: v for k, v in given.items() if v is not None}))
    device = resolve_device(config.env.device)
    if compilation_cache:
        enable_compilation_cache()
    with jax.default_device(device), stop_on_interrupt() as stop:
        return _train(config, env, callback, state, profile, stop)


def _train(
    config: Config,
    env: Any,
    callback: Callback | None,
    state: TrainState | None,
    profile: bool,
    stop: StopRequest,
) -> TrainResult:
    config, environment = build_environment(config, env)
    algorithm, spec = build_algorithm(config, environment)
    environment_class = import_path(type(environment.environment))
    # Before anything is compiled or written: is what the run goes on from there, and does it fit?
    resume = find_checkpoint(config, environment_class) if state is None else None
    program = make_program(algorithm, environment, config.runner.num_steps_per_env)
    transfer = None
    if resume is not None:
        check_fits(resume, config, spec, state_like(config, program))
        if resume.remaining <= 0:
            return _completed(resume, config, algorithm, program, spec)
        config = resume.record(config)
    elif state is None and config.runner.init_from is not None:
        transfer = find_transfer(config, algorithm, state_like(config, program))
        config = transfer.record(config)
    run = create_run(config, spec, environment_class)
    profiler = Profiler(run) if profile else None

    runner, logger = config.runner, config.runner.logger
    display = make_display(logger.log_interval if logger.enabled and runner.verbose else 0)
    log = RunLog(run, config, display, resume and earlier_history(resume.run, resume.iteration))
    milestones = Milestones(config, algorithm, spec, environment, run)
    report = _Report(config, log, callback)
    begun = False
    try:
        log.compiling(
            f"Compiling for {jax.config.jax_default_device}: {config.env.id}, {environment.num_envs} environments."
        )
        started = time.perf_counter()
        state, seconds = initial_state(config, program, state, resume, transfer)
        if transfer is not None:
            log.message(str(transfer))
        first = int(state.shared.iteration)
        last = first + runner.num_learning_iterations
        log.begin(first, last, seconds)
        blocks = run_blocks(
            program.block,
            state,
            first,
            last,
            milestones.intervals,
            started,
            lambda: report.wants_stop or stop.signal is not None,
            profiler and profiler.record,
        )
        for block in blocks:
            begun = True
            iteration, metrics = block.iterations[-1]
            if block.state is not None:
                state = block.state
                metrics |= milestones.evaluation(iteration, state)
            report(block)
            if block.state is not None:
                milestones.save(iteration, state, log.seconds)
        if begun:
            milestones.finish(iteration, state, log.seconds, stop.signal is not None)
    finally:
        milestones.close(stop.signal is not None)
        log.close()
        if profiler is not None:
            log.message(profiler.summary())
        if run is not None and not begun:  # nothing was trained, so there is nothing to find in it
            discard_run(run)
            run = None
    if report.failure is not None:
        raise report.failure
    if stop.signal is not None:
        log.message(_how_to_go_on(stop.signal, int(state.shared.iteration), last, run))
    policy = _policy(config, algorithm, spec, state)
    if run is not None:
        _export(policy, run / POLICY_FILE, log)
        _draw(log, run / CURVE_FILE)
    return TrainResult(state, log.arrays(), run, policy, stop.signal, checkpoint_summary(state, 0.0)["best_score"])


class _Report:
    """Logs blocks of iterations, shows them to the guards and to the callback, and keeps what ends the run.

    Attributes:
        failure: what is to be raised once the run's state is saved: a guard's error, or that of a failing callback.
        wants_stop: whether the run is to end with the block that is running.
    """

    def __init__(self, config: Config, log: RunLog, callback: Callback | None):
        self.failure: BaseException | None = None
        self.wants_stop = False
        self._log, self._callback, self._guards = log, callback, Guards(config.runner, log.warn_once)

    def __call__(self, block: Block) -> None:
        try:
            for iteration, metrics in self._log.block(block):
                if self._callback is not None:
                    self.wants_stop |= bool(self._callback(iteration, metrics))
                if enough := self._guards.check(iteration, metrics):
                    self._log.message(enough)
                    self.wants_stop = True
        except (Exception, KeyboardInterrupt) as error:
            self.failure, self.wants_stop = self.failure or error, True


def _completed(
    resume: Resume, config: Config, algorithm: Algorithm, program: Program, spec: EnvironmentSpec
) -> TrainResult:
    """Returns the result of a run that `auto` finds with all its iterations; nothing is trained or written."""
    logger = config.runner.logger
    display = make_display(logger.log_interval if logger.enabled and config.runner.verbose else 0)
    display.message(f"'{resume.run}' has all its {resume.last_iteration} iterations: nothing is left to do.")
    state, _ = initial_state(config, program, resume=resume)
    history = earlier_history(resume.run, resume.iteration).arrays()
    policy = _policy(config, algorithm, spec, state)
    return TrainResult(state, history, resume.run, policy, None, checkpoint_summary(state, 0.0)["best_score"])


def _policy(config: Config, algorithm: Algorithm, spec: EnvironmentSpec, state: TrainState) -> TrainedPolicy:
    """Returns the best policy of a state, or the last."""
    return choose_policy(config, algorithm, spec, saved_policies(algorithm, state), checkpoint_summary(state, 0.0))


def _how_to_go_on(signal: Signals, iteration: int, last: int, run: Path | None) -> str:
    """Returns the line that a run ends with which was told to stop."""
    stopped = f"Stopped by {signal.name} after iteration {iteration} of {last}"
    if run is None or iteration == last:
        return f"{stopped}."
    config = run / CONFIG_FILE if (run / CONFIG_FILE).is_file() else "CONFIG"
    return f"{stopped}; go on with: rlbotics-jax train {config} --resume {run} -i {last - iteration}"


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


def _draw(log: RunLog, path: Path) -> None:
    """Draws the learning curve, where the run logs its metrics and matplotlib is installed."""
    try:
        if write_learning_curve(log.arrays(), path):
            log.message(f"Wrote {path}.")
    except ImportError as error:
        log.message(str(error))
    except OSError as error:
        warnings.warn(f"No {path.name} was written: {error}", stacklevel=4)
