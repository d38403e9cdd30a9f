"""Checks a pure environment before anything is compiled, and names the leaf that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from rlbotics_jax.envs.base import Environment, third_party
from rlbotics_jax.metadata import encode_metadata


def check_environment(environment: Environment) -> None:
    """Traces `reset` and `step` abstractly and compares what they return.

    Raises:
        ValueError: in one sentence, naming the member or the leaf: a missing attribute, observations that are no dict
            of vectors and images, a reward or termination of the wrong shape or dtype, action bounds of the wrong
            length, metadata that cannot be written, or a leaf whose structure, shape, dtype or weak type differs
            between reset and step.
    """
    name = type(environment).__name__
    for member in ("num_actions", "action_low", "action_high", "episode_length", "dt", "reset", "step"):
        if not hasattr(environment, member):
            raise ValueError(f"{name} has no {member}; an environment needs it (see rlbotics_jax.envs.Environment).")
    for member in ("num_actions", "episode_length"):
        value = getattr(environment, member)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}.{member} is {value!r}; allowed: a positive integer.")
    if not isinstance(environment.dt, float | int) or not environment.dt > 0:
        raise ValueError(f"{name}.dt is {environment.dt!r}; allowed: the seconds between two actions, above 0.")
    _check_bounds(name, environment)
    metadata = getattr(environment, "metadata", {})
    if not isinstance(metadata, Mapping):
        raise ValueError(f"{name}.metadata is {metadata!r}; allowed: a dict of what exported policies tell.")
    try:
        encode_metadata(metadata)
    except ValueError as error:
        raise ValueError(f"{name}.{error}") from error
    try:
        hash(environment)
    except TypeError:
        raise ValueError(
            f"{name} cannot be hashed, which the cache of programs needs; make it @dataclass(frozen=True), with "
            "tuples instead of lists."
        ) from None
    with third_party():
        first = jax.eval_shape(environment.reset, jax.random.key(0))
        _check_fields(name, first)
        action = jax.ShapeDtypeStruct((environment.num_actions,), jnp.float32)
        second = jax.eval_shape(environment.step, first, action)
    _compare(name, first, second)


def _check_bounds(name: str, environment: Environment) -> None:
    """Raises where the action bounds are not both None, or two sequences of num_actions numbers, low < high."""
    low, high = environment.action_low, environment.action_high
    if (low is None) != (high is None):
        raise ValueError(f"{name}: only one of action_low and action_high is given; give both, or None for both.")
    for bound in ("action_low", "action_high"):
        values = getattr(environment, bound)
        if values is not None and np.shape(values) != (environment.num_actions,):
            raise ValueError(
                f"{name}.{bound} has shape {np.shape(values)}; allowed: None or "
                f"num_actions = {environment.num_actions} numbers."
            )
    if low is not None and not (np.asarray(low) < np.asarray(high)).all():
        raise ValueError(f"{name}: action_low {low!r} must be below action_high {high!r} in every dimension.")


def _check_fields(name: str, state: Any) -> None:
    """Raises where the state that `reset` returned lacks a field of `State`, or a field has the wrong type."""
    for field in ("observations", "reward", "terminated", "metrics"):
        if not hasattr(state, field):
            raise ValueError(f"{name}.reset returns a state without {field}; see rlbotics_jax.envs.State.")
    if not isinstance(state.observations, dict) or not state.observations:
        raise ValueError(f"{name}.reset: observations must be a dict of groups, such as {{'observation': array}}.")
    for group, leaf in state.observations.items():
        if not (_is_array(leaf, 1, jnp.float32) or _is_array(leaf, 3, jnp.float32) or _is_array(leaf, 3, jnp.uint8)):
            raise ValueError(
                f"{name}.reset: observations[{group!r}] is {_describe(leaf)}; allowed: a float32 vector (n,), or an "
                "image (C, H, W) of float32 or uint8."
            )
    if not _is_array(state.reward, 0, jnp.float32):
        raise ValueError(f"{name}.reset: reward is {_describe(state.reward)}; allowed: a float32 scalar.")
    if not _is_array(state.terminated, 0, jnp.bool_):
        raise ValueError(f"{name}.reset: terminated is {_describe(state.terminated)}; allowed: a bool scalar.")
    if not isinstance(state.metrics, dict):
        raise ValueError(f"{name}.reset: metrics is {_describe(state.metrics)}; allowed: a dict of scalars, or {{}}.")
    for key, leaf in state.metrics.items():
        if not _is_array(leaf, 0):
            raise ValueError(f"{name}.reset: metrics[{key!r}] is {_describe(leaf)}; allowed: a scalar.")


def _compare(name: str, first: PyTree, second: PyTree) -> None:
    """Raises where the states of reset and step differ, naming the first leaf that does."""
    before, after = (dict(jax.tree_util.tree_leaves_with_path(tree)) for tree in (first, second))
    for path in [*before, *(path for path in after if path not in before)]:
        leaf = "state" + jax.tree_util.keystr(path)
        if path not in after:
            raise ValueError(f"{name}: {leaf} is returned by reset but not by step; both must return the same leaves.")
        if path not in before:
            raise ValueError(f"{name}: {leaf} is returned by step but not by reset; both must return the same leaves.")
        if _describe(before[path]) != _describe(after[path]):
            raise ValueError(
                f"{name}: {leaf} is {_describe(before[path])} after reset but {_describe(after[path])} after step; "
                "make both equal (for example with jnp.asarray(value, jnp.float32))."
            )
    try:
        # Not by `==` of the tree structures, which takes two classes of equal fields for the same.
        jax.tree.map(lambda *_: None, first, second)
    except ValueError as error:
        raise ValueError(
            f"{name}: reset and step return different types of state; return state.replace(...) in step."
        ) from error


def _is_array(leaf: Any, ndim: int, dtype: Any = None) -> bool:
    """Returns whether a leaf is an (abstract) array of this rank, and of this dtype where one is given."""
    return isinstance(leaf, jax.ShapeDtypeStruct) and leaf.ndim == ndim and dtype in (None, leaf.dtype)


def _describe(leaf: Any) -> str:
    """Returns dtype and shape, and whether the type is weak; the type of what is no array."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return f"a {type(leaf).__name__}"
    weak = " (weakly typed)" if getattr(leaf, "weak_type", False) else ""
    return f"{leaf.dtype}{list(leaf.shape)}{weak}"
