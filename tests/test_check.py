"""check_environment: each toy breaks exactly one thing, and the sentence names it."""

from __future__ import annotations

import collections
import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from flax import struct
from helpers import small_config
from toys import ConstantReward, PrivilegedReward

from rlbotics_jax import train
from rlbotics_jax.envs import State, check_environment
from rlbotics_jax.envs.cartpole import CartpoleBalance, CartpoleSwingup


@dataclasses.dataclass(frozen=True)
class Good:
    """A correct environment, which the toys below break."""

    num_actions: int = 2
    action_low: tuple[float, ...] | None = (-1.0, -1.0)
    action_high: tuple[float, ...] | None = (1.0, 1.0)
    episode_length: int = 10
    dt: float = 0.1

    def reset(self, key):
        return State(
            data={"position": jax.random.uniform(key, (3,)), "count": jnp.int32(0)},
            observations={"observation": jnp.zeros(4)},
            reward=jnp.zeros(()),
            terminated=jnp.zeros((), bool),
            metrics={"Reward/alive": jnp.zeros(())},
        )

    def step(self, state, action):
        return state


def sentence(environment) -> str:
    """Returns the one sentence in which an environment is refused."""
    with pytest.raises(ValueError) as caught:
        check_environment(environment)
    text = str(caught.value)
    assert text.endswith(".") and "\n" not in text
    return text


def on_reset(**changes):
    """Returns an environment whose reset and step both return these fields."""

    class Bad(Good):
        def reset(self, key):
            return super().reset(key).replace(**changes)

    return Bad()


def on_step(change):
    """Returns an environment whose step returns `change(state)`."""

    class Bad(Good):
        def step(self, state, action):
            return change(state)

    return Bad()


@pytest.mark.parametrize(
    "environment", [Good(), Good(action_low=None, action_high=None), ConstantReward(), PrivilegedReward()]
)
def test_a_correct_environment_passes(environment):
    check_environment(environment)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.uint8])
def test_images_pass(dtype):
    check_environment(on_reset(observations={"joints": jnp.zeros(2), "camera": jnp.zeros((3, 4, 5), dtype)}))


@pytest.mark.parametrize("task", [CartpoleBalance, CartpoleSwingup])
def test_the_built_in_tasks_pass(task):
    check_environment(task())


@pytest.mark.parametrize(
    "member", ["num_actions", "action_low", "action_high", "episode_length", "dt", "reset", "step"]
)
def test_a_missing_member_is_named(member):
    members = {name: getattr(Good(), name) for name in [*Good.__dataclass_fields__, "reset", "step"] if name != member}
    assert sentence(SimpleNamespace(**members)) == (
        f"SimpleNamespace has no {member}; an environment needs it (see rlbotics_jax.envs.Environment)."
    )


@pytest.mark.parametrize("member", ["episode_length", "num_actions"])
@pytest.mark.parametrize("value", [0, -5, 2.5, 2.0, None, True])
def test_sizes_must_be_positive_integers(member, value):
    assert sentence(Good(**{member: value})) == f"Good.{member} is {value!r}; allowed: a positive integer."


@pytest.mark.parametrize("dt", [0.0, -0.1, None, float("nan")])
def test_dt_must_be_positive(dt):
    assert sentence(Good(dt=dt)) == f"Good.dt is {dt!r}; allowed: the seconds between two actions, above 0."


@pytest.mark.parametrize(("low", "shape"), [((0.0, 0.0, 0.0), "(3,)"), (0.5, "()")])
def test_bounds_must_have_an_entry_for_each_action(low, shape):
    expected = f"Good.action_low has shape {shape}; allowed: None or num_actions = 2 numbers."
    assert sentence(Good(action_low=low, action_high=(1.0, 1.0))) == expected


def test_bounds_come_in_pairs_and_in_order():
    one = "Good: only one of action_low and action_high is given; give both, or None for both."
    assert sentence(Good(action_low=(0.0, 0.0), action_high=None)) == one
    for low, high in (((0.0, 2.0), (1.0, 1.0)), ((0.0, float("nan")), (1.0, 1.0)), ((1.0, 0.0), (1.0, 1.0))):
        assert sentence(Good(action_low=low, action_high=high)) == (
            f"Good: action_low {low!r} must be below action_high {high!r} in every dimension."
        )


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (None, "Good.metadata is None; allowed: a dict of what exported policies tell."),
        (
            {"action_names": ["left,hip", "knee"]},
            "Good.metadata['action_names'] lists 'left,hip'; it is a list of names without a comma or a semicolon.",
        ),
    ],
)
def test_metadata_that_cannot_be_written_is_refused(metadata, expected):
    environment = Good()
    object.__setattr__(environment, "metadata", metadata)
    assert sentence(environment) == expected


def test_an_environment_that_cannot_be_hashed_is_refused():
    assert sentence(Good(action_low=[-1.0, -1.0])) == (
        "Good cannot be hashed, which the cache of programs needs; make it @dataclass(frozen=True), with tuples "
        "instead of lists."
    )


@pytest.mark.parametrize("field", ["observations", "reward", "terminated", "metrics"])
def test_a_missing_field_of_the_state_is_named(field):
    class Bad(Good):
        def reset(self, key):
            state = super().reset(key)
            kept = [name for name in ("observations", "reward", "terminated", "metrics") if name != field]
            return collections.namedtuple("Partial", kept)(*(getattr(state, name) for name in kept))

    assert sentence(Bad()) == f"Bad.reset returns a state without {field}; see rlbotics_jax.envs.State."


@pytest.mark.parametrize("observations", [jnp.zeros(4), {}, (jnp.zeros(4),)])
def test_observations_must_be_a_dict_of_groups(observations):
    expected = "Bad.reset: observations must be a dict of groups, such as {'observation': array}."
    assert sentence(on_reset(observations=observations)) == expected


@pytest.mark.parametrize(
    ("leaf", "described"),
    [
        (jnp.zeros(()), "float32[]"),
        (jnp.zeros((2, 3)), "float32[2, 3]"),
        (jnp.zeros(3, jnp.int32), "int32[3]"),
        (jnp.zeros(3, jnp.float16), "float16[3]"),
        (jnp.zeros(3, jnp.uint8), "uint8[3]"),
        (jnp.zeros((1, 2, 3), jnp.int32), "int32[1, 2, 3]"),
        (jnp.zeros((4, 1, 2, 3)), "float32[4, 1, 2, 3]"),
        ({"left": jnp.zeros(3)}, "a dict"),
        (None, "a NoneType"),
    ],
)
def test_every_group_must_be_a_float32_vector_or_an_image(leaf, described):
    expected = (
        f"Bad.reset: observations['camera'] is {described}; allowed: a float32 vector (n,), or an image (C, H, W) of "
        "float32 or uint8."
    )
    assert sentence(on_reset(observations={"joints": jnp.zeros(2), "camera": leaf})) == expected


@pytest.mark.parametrize(
    ("leaf", "described"),
    [(jnp.zeros(1), "float32[1]"), (jnp.int32(0), "int32[]"), ({"alive": jnp.zeros(())}, "a dict")],
)
def test_the_reward_must_be_a_float32_scalar(leaf, described):
    assert sentence(on_reset(reward=leaf)) == f"Bad.reset: reward is {described}; allowed: a float32 scalar."


@pytest.mark.parametrize(("leaf", "described"), [(jnp.zeros(1, bool), "bool[1]"), (jnp.float32(0), "float32[]")])
def test_terminated_must_be_a_bool_scalar(leaf, described):
    assert sentence(on_reset(terminated=leaf)) == f"Bad.reset: terminated is {described}; allowed: a bool scalar."


def test_metrics_must_be_scalars():
    expected = "Bad.reset: metrics['speed'] is float32[3]; allowed: a scalar."
    assert sentence(on_reset(metrics={"speed": jnp.zeros(3)})) == expected
    assert sentence(on_reset(metrics=None)) == "Bad.reset: metrics is a NoneType; allowed: a dict of scalars, or {}."


COUNT = "state.data['count']"
EQUAL = "make both equal (for example with jnp.asarray(value, jnp.float32))."


@pytest.mark.parametrize(
    ("count", "described"),
    [
        (jnp.float32(0), "float32[]"),
        (jnp.zeros(2, jnp.int32), "int32[2]"),
        (jnp.asarray(0), "int32[] (weakly typed)"),
    ],
)
def test_a_leaf_that_changes_its_dtype_shape_or_weak_type_is_named(count, described):
    bad = on_step(lambda state: state.replace(data={**state.data, "count": count}))
    assert sentence(bad) == f"Bad: {COUNT} is int32[] after reset but {described} after step; {EQUAL}"


def test_a_reward_that_is_a_python_number_is_named():
    expected = f"Bad: state.reward is float32[] after reset but float32[] (weakly typed) after step; {EQUAL}"
    assert sentence(on_step(lambda state: state.replace(reward=1.0))) == expected


def test_a_group_that_changes_its_size_is_named():
    bad = on_step(lambda state: state.replace(observations={"observation": jnp.zeros(5)}))
    assert (
        sentence(bad)
        == f"Bad: state.observations['observation'] is float32[4] after reset but float32[5] after step; {EQUAL}"
    )


def test_a_leaf_that_step_forgets_or_adds_is_named():
    forgets = on_step(lambda state: state.replace(metrics={}))
    assert sentence(forgets) == (
        "Bad: state.metrics['Reward/alive'] is returned by reset but not by step; both must return the same leaves."
    )
    adds = on_step(lambda state: state.replace(data={**state.data, "extra": jnp.zeros(())}))
    assert sentence(adds) == (
        "Bad: state.data['extra'] is returned by step but not by reset; both must return the same leaves."
    )


@struct.dataclass
class OtherState:
    """The same fields as State in another class."""

    data: object
    observations: object
    reward: object
    terminated: object
    metrics: object


def test_another_type_of_state_with_equal_leaves_is_refused():
    bad = on_step(lambda s: OtherState(s.data, s.observations, s.reward, s.terminated, s.metrics))
    expected = "Bad: reset and step return different types of state; return state.replace(...) in step."
    assert sentence(bad) == expected


def test_a_state_of_another_class_passes():
    class Other(Good):
        def reset(self, key):
            s = super().reset(key)
            return OtherState(s.data, s.observations, s.reward, s.terminated, s.metrics)

    check_environment(Other())


def test_nothing_is_computed():
    class Traced(Good):
        def step(self, state, action):
            assert isinstance(action, jax.core.Tracer) and action.shape == (2,)
            return state

    check_environment(Traced())


def test_environment_code_may_promote_ranks():
    promoting = on_step(lambda state: state.replace(observations={"observation": (jnp.ones((1, 4)) * jnp.ones(4))[0]}))
    check_environment(promoting)


def test_train_checks_before_it_writes_or_compiles(tmp_path):
    config = small_config(runner__logger__log_dir=str(tmp_path / "logs"))
    with pytest.raises(ValueError, match=r"Bad\.reset: reward is int32\[\]"):
        train(config, on_reset(reward=jnp.int32(0)))
    assert not (tmp_path / "logs").exists()
