"""`train(config, env)`: the host loop around the compiled program. It dispatches, logs and saves; it learns nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Any

import jax
import numpy as np

from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.blocks import Block, run_blocks
from rlbotics_jax.build import (
    build_algorithm,
    build_environment,
    initial_state,
    resolve_config,
    state_like,
    with_seed,
)
from rlbotics_jax.checkpoint import saved_iterations
from rlbotics_jax.compatibility import check_fits
from rlbotics_jax.compilation import enable_compilation_cache
from rlbotics_jax.config import Config
from rlbotics_jax.curve import CURVE_FILE, write_learning_curve
from rlbotics_jax.devices import resolve_device
from rlbotics_jax.display import Display, make_display
from rlbotics_jax.envs import Environment, EnvironmentSpec, VectorizedEnvironment
from rlbotics_jax.guards import Guards, TrainingError
from rlbotics_jax.history import History, earlier_history
from rlbotics_jax.interrupts import StopRequest, stop_on_interrupt
from rlbotics_jax.logger import RunLog
from rlbotics_jax.milestones import Milestones
from rlbotics_jax.policy import TrainedPolicy
from rlbotics_jax.profiler import Profiler
from rlbotics_jax.program import make_program
from rlbotics_jax.registry import import_path
from rlbotics_jax.resume import Resume, find_checkpoint
from rlbotics_jax.runs import CONFIG_FILE, POLICY_FILE, create_run, discard_run
from rlbotics_jax.snapshot import current_policy, summarize_state
from rlbotics_jax.transfer import Transfer, find_transfer
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
            NaN where there was nothing to report. A resumed run's begins with the iterations before, if those were
            logged.
        run_directory: where the run was written; None where nothing was to be written, or nothing was trained. Where
            `resume: auto` had nothing left to do, that of the complete run.
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
        state: continue from an earlier result's state for `num_learning_iterations` more, whatever `resume` and
            `init_from` say. It stays usable.
        init_from: a run, or a checkpoint of one, of any task, that the first parameters are taken from; in place of
            `config.runner.init_from`.
        load: what is taken from it, such as ("actor", "normalizer"); in place of `config.runner.load`.
        compilation_cache: keep compiled programs on disk for the next process.
        profile: write a trace of a few warm iterations into the run's folder, for TensorBoard and Perfetto.

    Returns:
        The result, also after Ctrl-C, SIGTERM or SIGUSR1 (with `interrupted`), which end the run at a safe point.

    Raises:
        ConfigError: what is wrong with the config, before anything is compiled.
        ValueError: what is wrong with the environment.
        TrainingError: training cannot go on; what was learned until then is saved.
    """
    config = resolve_config(config)
    if init_from is not None:
        config = config.replace(runner=config.runner.replace(init_from=os.fspath(init_from)))
    if load is not None:
        config = config.replace(runner=config.runner.replace(load=load))
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
    is_given = env is not None
    config, environment = build_environment(config, env)
    algorithm, spec = build_algorithm(config, environment)
    environment_class = import_path(type(environment.environment))

    # What the run goes on from is found and checked before anything is compiled or written.
    resume = find_checkpoint(config, environment_class) if state is None else None
    program = make_program(algorithm, environment, config.runner.num_steps_per_env)
    transfer = None
    if resume is not None:
        check_fits(resume, config, spec, state_like(config, program))
    elif state is None and config.runner.init_from is not None:
        transfer = find_transfer(config, algorithm, state_like(config, program))
    earlier = History() if resume is None else earlier_history(resume.run, resume.iteration)
    guards = Guards(config.runner, earlier.arrays().get("Episodes/mean_reward", ()))
    logger = config.runner.logger
    display = make_display(logger.log_interval if logger.enabled and config.runner.verbose else 0)
    if resume is not None and logger.resume == "auto" and (resume.remaining <= 0 or guards.is_good_enough):
        display.message(f"'{resume.run}' is complete, at iteration {resume.iteration}: nothing is left to do.")
        state, _ = initial_state(config, program, resume=resume)
        return _result(config, algorithm, spec, state, earlier.arrays(), resume.run, None, display)

    config = with_seed(_repeatable(config, resume, transfer))
    run = create_run(config, spec, environment_class)
    profiler = Profiler(run) if profile else None
    log = RunLog(run, config, display, earlier)
    milestones = Milestones(config, algorithm, spec, environment, run, stop.is_set)
    report = _Report(log, guards, milestones, callback)
    begun = False
    try:
        with contextlib.closing(log), contextlib.closing(milestones):
            log.compiling(
                f"Compiling for {jax.config.jax_default_device}: {config.env.id}, {environment.num_envs} environments."
            )
            started = time.perf_counter()
            state, seconds = initial_state(config, program, state, resume, transfer)
            if transfer is not None:
                log.message(str(transfer))
            first = int(state.shared.iteration)
            last = first + config.runner.num_learning_iterations
            log.begin(first, last, seconds, started)
            blocks = run_blocks(
                program.block,
                state,
                first,
                last,
                milestones.save_interval,
                milestones.eval_interval,
                started,
                lambda: report.wants_stop or stop.is_set(),
                profiler and profiler.record,
            )
            for block in blocks:
                begun = True
                report(block)
                if block.state is not None:
                    state, iteration = block.state, block.iterations[-1][0]
                    milestones.save(iteration, state, log.seconds)
            if begun:
                milestones.save(iteration, state, log.seconds, is_last=True)
    finally:
        if profiler is not None:
            log.message(profiler.summary())
        if run is not None and not begun:  # nothing was trained, so there is nothing to find in it
            discard_run(run)
            run = None
    if report.failure is not None:
        if run is not None and (saved := saved_iterations(run)):
            log.message(f"Iteration {saved[-1]} is saved in {run}.")
        raise report.failure
    if stop.signal is not None:
        log.message(_how_to_go_on(stop.signal, int(state.shared.iteration), last, run, is_given))
    return _result(config, algorithm, spec, state, log.arrays(), run, stop.signal, display)


class _Report:
    """Evaluates and logs blocks of iterations, shows them to the guards and the callback, and keeps what ends the run.

    Attributes:
        failure: what is to be raised once the run's state is saved: a guard's error, or that of a failing callback.
        wants_stop: whether the run is to end with the block that is running.
    """

    def __init__(self, log: RunLog, guards: Guards, milestones: Milestones, callback: Callback | None):
        self.failure: BaseException | None = None
        self.wants_stop = False
        self._log, self._guards, self._milestones, self._callback = log, guards, milestones, callback

    def __call__(self, block: Block) -> None:
        iteration, metrics = block.iterations[-1]
        if block.state is not None:
            with self._kept():
                metrics |= self._milestones.evaluation(iteration, block.state)
        for iteration, metrics in self._log.block(block):
            with self._kept():
                if self._callback is not None and self.failure is None:
                    self.wants_stop |= bool(self._callback(iteration, metrics))
                if enough := self._guards.check(iteration, metrics):
                    self._log.message(enough)
                    self.wants_stop = True

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            self.failure, self.wants_stop = self.failure or error, True


def _repeatable(config: Config, resume: Resume | None, transfer: Transfer | None) -> Config:
    """Returns the config that gives the same run again: `last`, `auto` or a run's latest checkpoint will be others.

    A state that was given to `train` no config can name.
    """
    if resume is not None:
        return resume.record(config)
    if transfer is not None:
        config = transfer.record(config)
    else:
        config = config.replace(runner=config.runner.replace(init_from=None))
    logger = config.runner.logger.replace(resume=None)
    return config.replace(runner=config.runner.replace(logger=logger))


def _how_to_go_on(signal: Signals, iteration: int, last: int, run: Path | None, is_given: bool) -> str:
    """Returns the line that a run ends with which was told to stop.

    Args:
        signal: told it.
        iteration, last: completed iterations, and those it should have had.
        run: its directory.
        is_given: its environment was an object, which no command line can name.
    """
    stopped = f"Stopped by {signal.name} after iteration {iteration} of {last}"
    saved = saved_iterations(run) if run is not None else []
    if not saved or saved[-1] >= last:
        return f"{stopped}."
    left = last - saved[-1]
    if is_given:
        return f"{stopped}; go on with runner.logger.resume: {run}, for {left} more."
    config = run / CONFIG_FILE if (run / CONFIG_FILE).is_file() else "CONFIG"
    words = ("rlbotics-jax", "train", config, "--resume", run, "-i", left)
    return f"{stopped}; go on with: {shlex.join(map(str, words))}"


def _result(
    config: Config,
    algorithm: Algorithm,
    spec: EnvironmentSpec,
    state: TrainState,
    history: dict[str, np.ndarray],
    run: Path | None,
    interrupted: Signals | None,
    display: Display,
) -> TrainResult:
    """Returns the result of a finished run, after writing what its directory still lacks: policy and curve."""
    policy = current_policy(config, algorithm, spec, state, run=run)
    if run is not None and not (run / POLICY_FILE).is_file():
        _export(policy, run / POLICY_FILE, display)
    if run is not None and not (run / CURVE_FILE).is_file() and config.runner.logger.log_metrics:
        _draw(history, run / CURVE_FILE, display)
    return TrainResult(state, history, run, policy, interrupted, summarize_state(state)["best_score"])


def _export(policy: TrainedPolicy, path: Path, display: Display) -> None:
    """Writes policy.onnx. A missing package or a failed export costs the file, not the training."""
    started = time.perf_counter()
    try:
        policy.export(path)
    except (ImportError, RuntimeError, ValueError, OSError) as error:
        warnings.warn(f"No {path.name} was written: {error}", stacklevel=5)
    else:
        which = policy.metadata["which"]
        display.message(f"Wrote {path} (the {which} policy) in {time.perf_counter() - started:.0f} s.")


def _draw(history: dict[str, np.ndarray], path: Path, display: Display) -> None:
    """Draws the learning curve, where matplotlib is installed."""
    try:
        if write_learning_curve(history, path):
            display.message(f"Wrote {path}.")
    except ImportError as error:
        display.message(str(error))
    except OSError as error:
        warnings.warn(f"No {path.name} was written: {error}", stacklevel=5)
