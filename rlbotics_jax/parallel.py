"""Several devices: a train state laid out for `jax.pmap`, and back.

    init, _ = make_train_step(algorithm, vectorize(environment, num_envs), T)
    _, device_step = make_train_step(algorithm, vectorize(environment, num_envs // D), T, axis_name="devices")
    state = spread_over_devices(init(key, hyperparameters), D)
    state, metrics = jax.pmap(device_step, axis_name="devices", donate_argnums=0)(state)

The state is initialised as a whole, then divided, so that a run does not depend on who holds which environment.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlbotics_jax.types import TrainState


def spread_over_devices(state: TrainState, num_devices: int) -> TrainState:
    """Returns the state with a leading device axis: the shared half repeated, the environments divided.

    Raises:
        ValueError: the environments do not divide by the devices.
    """
    num_envs = state.per_environment.episode_return.shape[0]
    if num_envs % num_devices:
        raise ValueError(f"{num_envs} environments do not divide by {num_devices} devices.")
    return TrainState(
        shared=jax.tree.map(lambda leaf: jnp.stack([leaf] * num_devices), state.shared),
        per_environment=jax.tree.map(
            lambda leaf: leaf.reshape(num_devices, -1, *leaf.shape[1:]), state.per_environment
        ),
    )


def gather_from_devices(state: TrainState) -> TrainState:
    """Returns the state of `spread_over_devices` as one again. The shared half is equal on all devices, to the bit."""
    return TrainState(
        shared=jax.tree.map(lambda leaf: leaf[0], state.shared),
        per_environment=jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), state.per_environment),
    )
