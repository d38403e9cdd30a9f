"""`rlbotics-jax import`: a PyTorch checkpoint as a run directory, from which training goes on."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from rlbotics_jax.build import resolve_config
from rlbotics_jax.checkpoint import Checkpoints
from rlbotics_jax.config import Config, ConfigError, OnPolicyRunnerConfig
from rlbotics_jax.registry import import_path
from rlbotics_jax.runs import create_run, discard_run
from rlbotics_jax.snapshot import run_identity, saved_policies, summarize_state


def import_checkpoint(path: str | os.PathLike, config: Any) -> Path:
    """Makes a run directory with config.json and one checkpoint, as if the run had been trained here until then.

    It can be resumed, evaluated and exported as any other. Nothing is left of it where anything fails.

    Args:
        path: the checkpoint of RLBotics or rsl_rl; see `bridges.torch.load_torch_checkpoint` for what is taken of it.
        config: a Config, a mapping, or the name or path of a file.

    Returns:
        The run directory, in the config's `log_dir/experiment`.

    Raises:
        OSError, ValueError, ImportError: as `bridges.torch.load_torch_checkpoint`.
        ConfigError: the checkpoint does not fit the config, or the config asks for nothing to be written.
        CheckpointError: the checkpoint cannot be written.
    """
    from bridges.torch import load

    config = _whole_config(config)
    runner = config.runner
    if not runner.logger.enabled or runner.logger.log_dir is None:
        raise ConfigError("runner.logger.log_dir", "a run is to be written, so log_dir and enabled must be set")
    # What the run began with is here, and its config.json is what makes it a run that can be read.
    logger = runner.logger.replace(resume=None, log_config=True)
    config = config.replace(runner=runner.replace(logger=logger, init_from=None))
    loaded = load(path, config)
    environment_class = import_path(type(loaded.environment.environment))
    run = create_run(loaded.config, loaded.spec, environment_class)
    try:
        iteration = int(loaded.state.shared.iteration)
        summary = summarize_state(loaded.state) | {"wall_time": 0.0} | run_identity(loaded.config, environment_class)
        checkpoints = Checkpoints(run)
        checkpoints.save(iteration, loaded.state, saved_policies(loaded.algorithm, loaded.state), summary)
        checkpoints.close()
        checkpoints.verify(iteration)
    except BaseException:
        discard_run(run)
        raise
    return run


def _whole_config(config: Any) -> Config:
    """Returns the config; where it is a section `runner` alone, which RLBotics writes, the error tells that."""
    try:
        return resolve_config(config)
    except ConfigError as error:
        if error.path not in {field.name for field in dataclasses.fields(OnPolicyRunnerConfig)}:
            raise
        problem = (
            "the section is missing: this is a section `runner`, which RLBotics writes alone; give a file with both"
        )
        raise ConfigError("env", problem, error.source) from error
