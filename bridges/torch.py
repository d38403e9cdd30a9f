"""PyTorch and this library: checkpoints of RLBotics and rsl_rl in, checkpoints and TorchScript for RLBotics out.

It needs torch (`pip install torch`), which the library itself does not.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from bridges.onnx_parity import ExportError
from bridges.torch_checks import check_exportable, check_fits, check_is_ppo
from bridges.torch_config import config_beside, rlbotics_runner_section
from bridges.torch_files import import_torch, read_torch_file, write_torch_file
from bridges.torch_layouts import parse_checkpoint
from bridges.torch_state import checkpoint_values, fill_state
from rlbotics_jax.algorithms import PPO, hyperparameters_of
from rlbotics_jax.build import build_algorithm, build_environment, resolve_config, state_like, with_seed
from rlbotics_jax.config import Config
from rlbotics_jax.devices import resolve_device
from rlbotics_jax.envs import EnvironmentSpec, VectorizedEnvironment
from rlbotics_jax.packing import difference, fill, layout_of
from rlbotics_jax.policy import TrainedPolicy
from rlbotics_jax.program import make_program
from rlbotics_jax.runs import open_checkpoint
from rlbotics_jax.snapshot import algorithm_state_like
from rlbotics_jax.types import TrainState

__all__ = [
    "ExportError",
    "config_beside",
    "export_torch_checkpoint",
    "export_torchscript",
    "load_torch_checkpoint",
    "rlbotics_runner_section",
    "save_torch_checkpoint",
]

if TYPE_CHECKING:
    from rlbotics_jax.training import TrainResult


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A checkpoint's state, and what it was built with."""

    state: TrainState
    config: Config
    environment: VectorizedEnvironment
    algorithm: PPO
    spec: EnvironmentSpec


def load_torch_checkpoint(path: str | os.PathLike, config: Any = None, env: Any = None) -> TrainState:
    """Returns a state with which `train(config, env, state=state)` goes on from a PyTorch checkpoint.

    It holds the file's networks, standard deviation, observation statistics, learning rate, iteration, and the moments
    of its optimizer where the config names the same one. A file does not name its optimizer: Adam's moments are AdamW's
    too. A warning tells where moments are missing or dropped, and where the file's weight decay (AdamW's is 0.01, all
    others' 0) is not that of the config's optimizer. Environments, random key and step counter begin anew: no such file
    has them. The best policy is the file's, with its score where the file is RLBotics' model_best.pt, else without one:
    the `best_metric` of model_100.pt belongs to a policy that is not in it.

    Nothing in a file tells its activation, the class of its distribution and the order of its observations: those must
    be right in the config. RLBotics trains the logarithm of the standard deviation, whatever its `std_type` says: its
    files go on exactly as there only with `std_type: log`; with `scalar`, the same gradients move it otherwise.
    rsl_rl's `crelu` is CELU, which is not built here. A file that was saved before the first update divides
    observations by 1.01 where this library leaves them as they are. A uint8 image is divided by 255 here; there, the
    environment has to.

    Args:
        path: of RLBotics 0.1 or rsl_rl 3 to 5: `model_100.pt`, `model_best.pt`. Nothing in the file is run.
        config: as `train` takes it; None reads the config.json beside the file (see `config_beside`).
        env: as `train` takes it.

    Raises:
        OSError, ValueError: the file is missing, cannot be read, or holds a part that has no counterpart here, such as
            a recurrent network, a state-dependent standard deviation, a distillation or random network distillation.
        ConfigError: the file does not fit the config; the key, with both values.
        ImportError: torch is not installed.
    """
    return load(path, config, env).state


def load(path: str | os.PathLike, config: Any = None, env: Any = None) -> Loaded:
    """As `load_torch_checkpoint`; returns also what the state was built with."""
    checkpoint = parse_checkpoint(read_torch_file(path), Path(path))
    config = config_beside(path, env) if config is None else resolve_config(config)
    config = with_seed(config)
    with jax.default_device(resolve_device(config.env.device)):
        config, environment = build_environment(config, env)
        algorithm, spec = build_algorithm(config, environment)
        algorithm = check_is_ppo(algorithm)
        program = make_program(algorithm, environment, config.runner.num_steps_per_env)
        check_fits(checkpoint, algorithm, state_like(config, program).shared.algorithm)
        state = program.init(jax.random.key(config.runner.seed), hyperparameters_of(config.runner.algorithm))
        return Loaded(fill_state(state, algorithm, checkpoint), config, environment, algorithm, spec)


def save_torch_checkpoint(result: TrainResult, path: str | os.PathLike) -> Path:
    """Writes the last state of a training run as a checkpoint that RLBotics' runner loads and goes on from.

    It holds networks, standard deviation, observation statistics, the optimizer with its moments and learning rate, the
    iteration and the best score: that of the best policy of the training here, or of the model_best.pt that it began
    with until it is beaten; none where no policy has a score yet. RLBotics repeats the iteration that it resumes from,
    and under the adaptive schedule begins with the learning rate of its config. Its config must be
    `rlbotics_runner_section(config)`, which is the section `runner` without the keys that it does not know; it trains
    the logarithm of the standard deviation, whatever `std_type` says.

    Args:
        result: what `train` returned.
        path: the file to write; missing folders are made, an existing file is replaced at once or not at all.

    Returns:
        The path written.

    Raises:
        ConfigError: RLBotics has no place for a part: a Flax module or a distribution of one's own, an algorithm that
            does not derive from PPO, an activation that it lacks, `obs_clip`, an image model with normalised
            observations or several groups.
        ImportError: torch is not installed.
        OSError: the file cannot be written.
    """
    shared, score = result.state.shared, result.best_score
    return _save(result.policy.algorithm, shared.algorithm, int(shared.iteration), score, path)


def export_torch_checkpoint(run: str | os.PathLike, path: str | os.PathLike) -> Path:
    """Writes the last state of a run directory as `save_torch_checkpoint`. Its environment is not needed.

    Raises:
        FileNotFoundError, ValueError: there is no run, or no checkpoint in it that can be read.
        ConfigError, ImportError, OSError: as `save_torch_checkpoint`.
    """
    saved = open_checkpoint(run)
    like = algorithm_state_like(saved.config, saved.algorithm, saved.spec)
    leaves = saved.checkpoints.algorithm_leaves(saved.iteration, lambda path: True)
    if found := difference(layout_of(leaves), layout_of(like)):
        raise ValueError(f"'{run}' has {found[0]} {found[1]} where its config asks for {found[2]}.")
    score = saved.checkpoints.summary(saved.iteration)["best_score"]
    return _save(saved.algorithm, fill(like, leaves), saved.iteration, score, path)


def _save(algorithm: Any, state: Any, iteration: int, score: float | None, path: str | os.PathLike) -> Path:
    algorithm = check_is_ppo(algorithm)
    check_exportable(algorithm, state)
    return write_torch_file(checkpoint_values(algorithm, state, iteration, score), path)


def export_torchscript(policy: TrainedPolicy, path: str | os.PathLike) -> Path:
    """Writes a policy as a TorchScript module, the `policy.pt` of RLBotics: `torch.jit.load(path)(observation)`.

    As there, the module goes from raw observations (batch, n), the groups side by side, or images (batch, C, H, W), to
    the deterministic action in the policy's own units: normalisation and squashing are inside, clipping and scaling
    onto the environment's action range are not. (An ONNX file has them.) A policy that reads an image and other groups
    takes one argument for each group, in the order of `runner.obs_groups.actor`. Any batch size will do.

    Nothing is written unless the module reproduces JAX at batch 1, 2 and 64, as `bridges.onnx.export_onnx` has it.

    Raises:
        ConfigError: the network is a Flax module of one's own, or the algorithm does not derive from PPO.
        ExportError: the module's actions differ from JAX's.
        ImportError: torch is not installed.
        OSError: the file cannot be written.
    """
    import_torch("Exporting to TorchScript")
    from bridges.torch_script import write_torchscript

    return write_torchscript(check_is_ppo(policy.algorithm), policy, path)
