"""PPO's state from a PyTorch checkpoint, and the values of a checkpoint from PPO's state."""

from __future__ import annotations

import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from bridges.torch_files import import_torch
from bridges.torch_layouts import NETWORKS, Networks, TorchCheckpoint
from bridges.torch_names import convert_std, entries, from_torch, std_of, to_torch
from bridges.torch_statistics import statistics_from_torch, statistics_to_torch
from rlbotics_jax.algorithms import PPO
from rlbotics_jax.algorithms.ppo_types import PPOState
from rlbotics_jax.sharing import with_encoders
from rlbotics_jax.types import BestPolicy, TrainState

_ADAM = {"mu": "exp_avg", "nu": "exp_avg_sq"}
_MOMENTS = {"adam": _ADAM, "adamw": _ADAM, "rmsprop": {"nu": "square_avg"}, "sgd": {}}
"""By optimizer: optax's name of a moment, and torch's."""

_WEIGHT_DECAY = {"adamw": 0.01}
"""By optimizer, where it decays weights."""

_ORDER = {"mu": 1, "nu": 2}
"""Whether a moment is an average of gradients, or of their squares."""

_OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop", "sgd": "SGD"}
"""The classes of `torch.optim`."""


def fill_state(state: TrainState, algorithm: PPO, checkpoint: TorchCheckpoint) -> TrainState:
    """Returns a fresh state with what a checkpoint holds in it; see `bridges.torch.load_torch_checkpoint`.

    The checkpoint must fit (`torch_checks.check_fits`).
    """
    filled = _fill_algorithm(state.shared.algorithm, algorithm, checkpoint)
    score, iteration = checkpoint.best or (-math.inf, 0)
    # Copied: the state is donated, and a buffer can be donated only once.
    parameters = jax.tree.map(jnp.copy, algorithm.policy_parameters(filled))
    best = BestPolicy(parameters, jnp.float32(score), jnp.int32(iteration))
    shared = state.shared.replace(algorithm=filled, best=best, iteration=jnp.int32(checkpoint.iteration))
    return state.replace(shared=shared)


def _fill_algorithm(state: PPOState, algorithm: PPO, checkpoint: TorchCheckpoint) -> PPOState:
    models = {"actor": algorithm.actor, "critic": algorithm.critic}
    found, networks = entries(models, state.parameters), checkpoint.networks
    (std_type,) = state.parameters["actor"]["distribution"]
    std = std_of(networks)

    def tree(arrays: Networks, order: int) -> PyTree:
        converted = convert_std(arrays, std_type, std, order, algorithm.distribution.std_range)
        return jax.tree.map(jnp.asarray, from_torch(found, converted))

    optimizer, names = state.optimizer, _MOMENTS[algorithm.settings.optimizer]
    for problem in _optimizer_problems(checkpoint, algorithm.settings.optimizer):
        warnings.warn(f"'{checkpoint.path}' {problem}.", stacklevel=5)  # where a function of bridges.torch is called
    if checkpoint.moments.keys() >= set(names.values()):
        zeros = jax.tree.map(np.zeros_like, networks)  # of a parameter that was never stepped
        for mine, name in names.items():
            arrays = {network: zeros[network] | checkpoint.moments[name][network] for network in NETWORKS}
            optimizer = optax.tree_utils.tree_set(optimizer, **{mine: tree(arrays, _ORDER[mine])})
        if "mu" in names:
            optimizer = optax.tree_utils.tree_set(optimizer, count=jnp.int32(checkpoint.step))
    hyperparameters = dict(state.hyperparameters)
    if checkpoint.learning_rate is not None:
        hyperparameters["learning_rate"] = jnp.float32(checkpoint.learning_rate)
    normalizers = {
        name: statistics_from_torch(
            models[name], state.parameters[name]["network"], state.normalizers[name], networks[name]
        )
        for name in NETWORKS
    }
    return state.replace(
        parameters=tree(networks, 0), normalizers=normalizers, optimizer=optimizer, hyperparameters=hyperparameters
    )


def _optimizer_problems(checkpoint: TorchCheckpoint, name: str) -> list[str]:
    """Returns in what the file's optimizer is not the config's, which has this name."""
    wanted, problems = set(_MOMENTS[name].values()), []
    if missing := wanted - checkpoint.moments.keys():
        problems.append(f"has no {', '.join(sorted(missing))}: the optimizer {name} starts afresh")
    elif dropped := checkpoint.moments.keys() - wanted:
        problems.append(f"has {', '.join(sorted(dropped))}, which the optimizer {name} drops")
    decay = _WEIGHT_DECAY.get(name, 0.0)
    if checkpoint.weight_decay not in (None, decay):
        problems.append(f"decayed weights by {checkpoint.weight_decay}, the optimizer {name} decays them by {decay}")
    return problems


def checkpoint_values(algorithm: PPO, state: PPOState, iteration: int, best_score: float | None) -> dict[str, Any]:
    """Returns what `torch.save` is to write so that RLBotics' runner goes on from it.

    Args:
        algorithm, state: PPO and its state, which RLBotics must have a place for (`torch_checks.check_exportable`).
        iteration: completed iterations.
        best_score: of the best policy, or None.
    """
    torch = import_torch("Writing a PyTorch checkpoint")
    models, shared = {"actor": algorithm.actor, "critic": algorithm.critic}, algorithm.settings.share_cnn_encoders

    def whole(tree: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """Returns a tree like the parameters, and the statistics, with shared encoders in both, as torch has them."""
        if not shared:
            return tree, state.normalizers
        actor, critic = (tree[name]["network"] for name in NETWORKS)
        network, statistics = with_encoders(critic, state.normalizers["critic"], actor, state.normalizers["actor"])
        return {**tree, "critic": {"network": network}}, {**state.normalizers, "critic": statistics}

    parameters, statistics = whole(state.parameters)
    found = entries(models, parameters)
    std = std_of(to_torch(found, parameters))

    def arrays(tree: PyTree, order: int) -> Networks:
        return convert_std(to_torch(found, tree), "log_std", std, order)

    networks = arrays(parameters, 0)
    moments = {
        name: arrays(whole(optax.tree_utils.tree_get(state.optimizer, mine))[0], _ORDER[mine])
        for mine, name in _MOMENTS[algorithm.settings.optimizer].items()
    }

    # A real optimizer, because what it saves beside the moments differs between torch's versions.
    tracked = {
        (name, key): torch.nn.Parameter(torch.tensor(array))
        for name in NETWORKS
        for key, array in networks[name].items()
    }
    if shared:  # RLBotics' optimizer has them twice
        tracked |= {("critic", key): tracked["actor", key] for _, key in tracked if key.startswith("cnn")}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "optimizer contains a parameter group with duplicate parameters")
        optimizer = getattr(torch.optim, _OPTIMIZERS[algorithm.settings.optimizer])(
            list(tracked.values()), lr=float(state.hyperparameters["learning_rate"])
        )
    step = torch.tensor(float(optax.tree_utils.tree_get(state.optimizer, "count", 0)))
    for (name, key), parameter in tracked.items():
        averages = {moment: torch.tensor(arrays[name][key]) for moment, arrays in moments.items()}
        if averages:
            optimizer.state[parameter] = {"step": step.clone(), **averages}

    for name in NETWORKS:
        networks[name] |= statistics_to_torch(models[name], parameters[name]["network"], statistics[name])
    state_dicts = {
        f"{name}_state_dict": {key: torch.tensor(array) for key, array in networks[name].items()} for name in NETWORKS
    }
    return {
        **state_dicts,
        "optimizer_state_dict": optimizer.state_dict(),
        "iteration": max(iteration - 1, 0),
        "best_metric": best_score,
    }
