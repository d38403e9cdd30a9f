"""N environments as one: action mapping, time limit, auto-reset, and environments that went non-finite."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from rlbotics_jax.envs.base import Environment, third_party
from rlbotics_jax.envs.spec import ActionMapping
from rlbotics_jax.rows import select_rows, zero_other_rows
from rlbotics_jax.types import Observations, Timestep


@struct.dataclass
class VectorizedState:
    """N environments between two steps; every leaf leads with N.

    Attributes:
        current: their states.
        initial: the state from which each restarts when its episode ends, drawn anew for every rollout.
        episode_step: steps since the last reset, the time limit's own counter.
        key: a key for each environment's true resets; None where `initial` serves.
    """

    current: PyTree
    initial: PyTree
    episode_step: Int[Array, " N"]
    key: Array | None

    @property
    def observations(self) -> Observations:
        """What the policy sees now, (N, ...) a group."""
        return self.current.observations


@dataclasses.dataclass(frozen=True)
class VectorizedEnvironment:
    """The vectorised form of one pure environment; see `vectorize`."""

    environment: Environment
    num_envs: int
    action_mapping: ActionMapping
    init_at_random_ep_len: bool = False
    full_reset: bool = False

    def reset(self, key: Array) -> VectorizedState:
        """Returns N fresh environments. With `init_at_random_ep_len` their episodes are spread over the time limit."""
        state_key, step_key, reset_key = jax.random.split(key, 3)
        episode_step = jnp.zeros(self.num_envs, jnp.int32)
        if self.init_at_random_ep_len:
            episode_step = jax.random.randint(step_key, (self.num_envs,), 0, self.environment.episode_length)
        current = self._reset_all(jax.random.split(state_key, self.num_envs))
        return VectorizedState(
            current=current,
            initial=current,
            episode_step=episode_step,
            key=jax.random.split(reset_key, self.num_envs) if self.full_reset else None,
        )

    def begin_rollout(self, state: VectorizedState, key: Array) -> VectorizedState:
        """Draws the states from which environments restart during the next rollout, one for each.

        A reset costs about as much as a step, and episodes are much longer than rollouts; so one reset per environment
        and rollout replaces one per environment and step, and restarts still are fresh random states.
        """
        if self.full_reset:
            return state
        return state.replace(initial=self._reset_all(jax.random.split(key, self.num_envs)))

    def step(self, state: VectorizedState, actions: Float[Array, "N A"]) -> tuple[VectorizedState, Timestep]:
        """Steps all environments and restarts those whose episode ended.

        An environment whose observations, reward or physics are not finite is terminated before that decision, so that
        its physics restarts too; its reward is zero and its row invalid.

        Args:
            state: from `reset`, `begin_rollout` or `step`.
            actions: in the policy's own units, unclipped.

        Returns:
            The new state, and the timestep: `observations` are those after the restart, `final_observations` those
            before it.
        """
        physical = self.action_mapping(actions)
        with third_party():
            stepped = jax.vmap(self.environment.step)(state.current, physical)
            watched = jax.vmap(self._watched)(stepped)
        non_finite = {source: ~_rows_finite(tree) for source, tree in watched.items()}
        valid = ~jnp.any(jnp.stack(list(non_finite.values())), axis=0)
        episode_step = state.episode_step + 1
        terminated = stepped.terminated.astype(bool) | ~valid
        truncated = (episode_step >= self.environment.episode_length) & ~terminated
        done = terminated | truncated

        restart, key = self._restart_states(state, done)
        current = select_rows(done, restart, stepped)
        timestep = Timestep(
            observations=current.observations,
            rewards=jnp.where(valid, stepped.reward, 0.0),
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            final_observations=zero_other_rows(valid, stepped.observations),
            log=zero_other_rows(valid, stepped.metrics),
            non_finite=non_finite,
        )
        episode_step = jnp.where(done, 0, episode_step)
        return state.replace(current=current, episode_step=episode_step, key=key), timestep

    def _reset_all(self, keys: Array) -> PyTree:
        with third_party():
            return jax.vmap(self.environment.reset)(keys)

    def _restart_states(self, state: VectorizedState, done: Bool[Array, " N"]) -> tuple[PyTree, Array | None]:
        """Returns the state each environment restarts from, and the keys left after drawing them."""
        if not self.full_reset:
            return state.initial, None
        keys = jax.vmap(jax.random.split)(state.key)
        restart = jax.lax.cond(jnp.any(done), lambda: self._reset_all(keys[:, 1]), lambda: state.initial)
        return restart, keys[:, 0]

    def _watched(self, state: PyTree) -> dict[str, PyTree]:
        """Returns what must stay finite, by its name in reports; an environment's `physics(state)` is optional."""
        watched = {f"observations.{group}": leaf for group, leaf in state.observations.items()}
        watched["reward"] = state.reward
        if (physics := getattr(self.environment, "physics", None)) is not None:
            watched["physics"] = physics(state)
        return watched


def vectorize(
    environment: Environment,
    num_envs: int,
    *,
    clip_actions: float | None = None,
    init_at_random_ep_len: bool = False,
    full_reset: bool = False,
) -> VectorizedEnvironment:
    """Returns N copies of a pure environment with mapped actions, time limit and auto-reset.

    Args:
        environment: the environment.
        num_envs: N.
        clip_actions: bound on the policy's actions before they are mapped, or None.
        init_at_random_ep_len: start the first episodes at random points of the time limit, so that environments do not
            all end together.
        full_reset: a true reset at every episode's end, instead of one fresh initial state per environment and rollout.
    """
    low, high = (
        None if bound is None else tuple(float(value) for value in bound)
        for bound in (environment.action_low, environment.action_high)
    )
    mapping = ActionMapping(low, high, clip_actions)
    return VectorizedEnvironment(environment, num_envs, mapping, init_at_random_ep_len, full_reset)


def _rows_finite(tree: PyTree) -> Bool[Array, " N"]:
    """Returns, for each leading index, whether every inexact leaf is finite there."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    num_rows = jax.tree.leaves(tree)[0].shape[0]
    rows = [jnp.all(jnp.isfinite(leaf.reshape(num_rows, -1)), axis=1) for leaf in leaves]
    return jnp.all(jnp.array([jnp.ones(num_rows, bool), *rows]), axis=0)
