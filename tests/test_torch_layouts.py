"""The layouts of RLBotics and of three rsl_rl versions become one."""

from __future__ import annotations

import numpy as np
import pytest
from torch_values import PATH, checkpoint, network, normalizer, optimizer, rlbotics

from bridges.torch_layouts import parse_checkpoint

STD = np.full(1, 0.5, np.float32)


def rsl_rl_5() -> dict:
    actor = {**normalizer(), "distribution.std_param": STD, **network(0, 3)}
    return {"actor_state_dict": actor, "critic_state_dict": network(100, 2)}


def rsl_rl_4() -> dict:
    return {"actor_state_dict": {"std": STD, **normalizer(), **network(0, 3)}, "critic_state_dict": network(100, 2)}


def rsl_rl_3() -> dict:
    """Its one module has the standard deviation first, and the networks under their own names."""
    model = {"std": STD}
    model |= {name.replace("mlp.", "actor."): array for name, array in network(0, 3).items()}
    model |= {f"actor_{name}": array for name, array in normalizer().items()}
    model |= {name.replace("mlp.", "critic."): array for name, array in network(100, 2).items()}
    return {"model_state_dict": model}


@pytest.mark.parametrize("layout", [rsl_rl_3, rsl_rl_4, rsl_rl_5])
def test_versions_of_rsl_rl_give_the_same_arrays(layout):
    found = checkpoint({**layout(), "optimizer_state_dict": optimizer(), "iter": 41, "infos": None})
    assert found.iteration == 42 and found.learning_rate == 3e-4 and found.step == 7 and found.best is None
    np.testing.assert_array_equal(found.networks["actor"].pop("distribution.std_param"), STD)
    for name, wanted in (("actor", {**normalizer(), **network(0, 3)}), ("critic", network(100, 2))):
        assert found.networks[name].keys() == wanted.keys()
        for key, array in wanted.items():
            np.testing.assert_array_equal(found.networks[name][key], array)


@pytest.mark.parametrize("layout", [rsl_rl_3, rsl_rl_4, rsl_rl_5])
def test_moments_belong_to_the_parameters_that_torch_counts(layout):
    """The optimizer's k-th state is the k-th parameter's, statistics left out: told by a number in each."""
    saved = optimizer()
    for i, state in saved["state"].items():
        state["exp_avg"][...] = i
    moments = checkpoint({**layout(), "optimizer_state_dict": saved, "iter": 0}).moments["exp_avg"]
    numbers = {name: {key: float(array.max()) for key, array in arrays.items()} for name, arrays in moments.items()}
    assert numbers["actor"] == {
        "distribution.std_param": 0,
        "mlp.0.weight": 1,
        "mlp.0.bias": 2,
        "mlp.2.weight": 3,
        "mlp.2.bias": 4,
    }
    assert list(numbers["critic"].values()) == [5, 6, 7, 8]


def test_parameter_that_was_never_stepped_has_no_moments():
    values = rlbotics()
    del values["optimizer_state_dict"]["state"][0]
    moments = checkpoint(values).moments["exp_avg"]
    assert "distribution.log_std_param" not in moments["actor"] and len(moments["actor"]) == 4


def test_best_file_tells_its_score():
    assert checkpoint(rlbotics(best_metric=12.5, best_iteration=1)).best == (12.5, 2)
    assert checkpoint(rlbotics(best_metric=12.5)).best is None  # the score is that of another file


@pytest.mark.parametrize(
    "groups, names", [(["depth"], ["cnn.0.weight"]), (["a", "b"], ["cnns.a.0.weight", "cnns.b.0.weight"])]
)
def test_the_only_encoder_of_a_network_is_called_as_rlbotics_calls_it(groups, names):
    values = rlbotics(optimizer_state_dict=None)
    values["actor_state_dict"] |= {f"cnns.{group}.0.weight": np.zeros((4, 1, 3, 3), np.float32) for group in groups}
    found = checkpoint(values).networks["actor"]
    assert [name for name in found if name.startswith("cnn")] == names


@pytest.mark.parametrize(
    "values, message",
    [
        ({"rnd_state_dict": {}}, "holds random network distillation (RND) (rnd_state_dict), which has no counterpart"),
        ({"student_state_dict": {}}, "holds a distillation (student_state_dict)"),
        ({"obs_norm_state_dict": {}}, "has the observation statistics of rsl_rl 2 (obs_norm_state_dict)"),
        (
            {"model_state_dict": {"memory_a.rnn.weight_ih_l0": 0}},
            "holds a recurrent network (memory_a.rnn.weight_ih_l0)",
        ),
        ({"actor_state_dict": {"rnn.rnn.weight_ih_l0": 0}}, "holds a recurrent network (rnn.rnn.weight_ih_l0)"),
        ({"actor_state_dict": network(0, 3)}, "has no standard deviation as a parameter of its own"),
        ({"iteration": None}, "tells no iteration"),
        ({"iteration": -1}, "holds -1 as iteration, where a whole number from 0 to 2147483646 is needed"),
        ({"iteration": 2**40}, "holds 1099511627776 as iteration"),
        ({"iteration": True}, "holds true as iteration"),
        ({"best_metric": np.inf, "best_iteration": 1}, "holds inf as best_metric"),
        ({"best_metric": 1.0, "best_iteration": "one"}, "holds 'one' as best_iteration"),
        ({"critic_state_dict": np.zeros(3)}, "holds a ndarray as critic_state_dict, not a mapping"),
        ({"critic_state_dict": {3: np.zeros(3)}}, "holds 3 among the names of critic_state_dict; allowed are texts"),
        ({"optimizer_state_dict": {"state": {}}}, "holds an optimizer_state_dict that is no optimizer's of torch"),
        ({"optimizer_state_dict": [1]}, "holds a list as optimizer_state_dict, not a mapping"),
    ],
)
def test_what_is_not_known_is_refused_by_name(values, message):
    with pytest.raises(ValueError) as error:
        parse_checkpoint(rlbotics(**values), PATH)
    assert str(error.value).startswith("'model.pt' ") and message in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mlp.0.weight", "text", "holds a str as actor mlp.0.weight, where a plain array of real numbers is needed"),
        ("mlp.0.weight", None, "holds a NoneType as actor mlp.0.weight"),
        ("mlp.0.weight", {"a": np.zeros(2)}, "holds a dict as actor mlp.0.weight"),
        ("mlp.0.weight", np.zeros((3, 2), complex), "holds a complex128 array as actor mlp.0.weight"),
        ("mlp.0.weight", np.full((3, 2), np.nan), "holds values of actor mlp.0.weight that are not finite"),
        ("mlp.0.weight", np.zeros(6), "holds actor mlp.0.weight of shape (6,), where a matrix is needed"),
        ("obs_normalizer._var", np.full((1, 2), -1.0), "holds negative values of actor obs_normalizer._var"),
        ("obs_normalizer.count", np.asarray(-3), "holds negative values of actor obs_normalizer.count"),
        ("std", np.ones(1), "more than one standard deviation: distribution.log_std_param, distribution.std_param"),
    ],
)
def test_arrays_that_no_training_leaves(name, value, message):
    values = rlbotics()
    values["actor_state_dict"][name] = value
    with pytest.raises(ValueError) as error:
        checkpoint(values)
    assert str(error.value).startswith("'model.pt' ") and message in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exp_avg": np.full((3, 2), np.nan)}, "holds values of actor mlp.0.weight exp_avg that are not finite"),
        ({"exp_avg_sq": np.full((3, 2), -1.0)}, "holds negative values of actor mlp.0.weight exp_avg_sq"),
        ({"exp_avg": "text"}, "holds a str as actor mlp.0.weight exp_avg"),
        ({"step": np.float32(np.nan)}, "as actor mlp.0.weight step, where a number from 0 to 2.14748e+09 is needed"),
        ({"step": 2**40}, "holds 1099511627776 as actor mlp.0.weight step"),
        ({"lr": np.nan}, "holds nan as learning rate, where a number from 0 to 3.40282e+38 is needed"),
        ({"lr": 10**400}, "as learning rate, where a number"),
        ({"lr": "fast"}, "holds 'fast' as learning rate"),
        ({"weight_decay": [0.1]}, "holds [0.1] as weight decay"),
    ],
)
def test_optimizers_that_no_training_leaves(changes, message):
    values = rlbotics()
    group, state = values["optimizer_state_dict"]["param_groups"][0], values["optimizer_state_dict"]["state"][1]
    for key, value in changes.items():
        (group if key in ("lr", "weight_decay") else state)[key] = value
    with pytest.raises(ValueError) as error:
        checkpoint(values)
    assert str(error.value).startswith("'model.pt' ") and message in str(error.value)


@pytest.mark.parametrize(
    "broken",
    [
        {"param_groups": []},
        {"param_groups": [{"params": [0]}]},
        {"param_groups": [3]},
        {"param_groups": [{"lr": 0.1, "params": [[0]]}]},
        {"state": None},
        {"state": {0: "text"}},
    ],
)
def test_mappings_that_are_no_optimizer(broken):
    with pytest.raises(ValueError, match="'model.pt' holds an optimizer_state_dict that is no optimizer's of torch"):
        checkpoint(rlbotics(optimizer_state_dict=optimizer() | broken))


def test_bare_state_dict_is_told_from_a_checkpoint():
    with pytest.raises(ValueError, match="'model.pt' holds arrays alone, as the state_dict of one network does"):
        parse_checkpoint(network(0, 3), PATH)


@pytest.mark.parametrize("values", [{}, {"weight": 1}, {3: {}}, {"actor_state_dict": {}}])
def test_other_mappings_are_no_checkpoints(values):
    with pytest.raises(ValueError, match="no counterpart|no checkpoint of RLBotics|no critic_state_dict|standard"):
        parse_checkpoint(values, PATH)


def test_optimizer_of_other_networks_is_refused():
    values = rlbotics()
    values["optimizer_state_dict"]["param_groups"][0]["params"].pop()
    with pytest.raises(ValueError, match="'model.pt' has an optimizer of 8 parameters and networks of 9"):
        checkpoint(values)
    with pytest.raises(ValueError, match=r"has exp_avg of shape \(3, 2\) for actor mlp.0.weight of shape \(4, 2\)"):
        checkpoint(rlbotics(hidden=4))


def test_file_without_an_optimizer():
    found = checkpoint(rlbotics(optimizer_state_dict=None))
    assert (found.learning_rate, found.weight_decay, found.step, found.moments) == (None, None, 0, {})
