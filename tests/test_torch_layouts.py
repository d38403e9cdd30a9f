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
        ({"obs_norm_state_dict": {}}, "holds a part that is not known here (obs_norm_state_dict)"),
        (
            {"model_state_dict": {"memory_a.rnn.weight_ih_l0": 0}},
            "holds a recurrent network (memory_a.rnn.weight_ih_l0)",
        ),
        ({"actor_state_dict": {"rnn.rnn.weight_ih_l0": 0}}, "holds a recurrent network (rnn.rnn.weight_ih_l0)"),
        ({"actor_state_dict": network(0, 3)}, "has no standard deviation as a parameter of its own"),
        ({"iteration": None}, "tells no iteration"),
        ({"critic_state_dict": np.zeros(3)}, "holds a ndarray as critic_state_dict, not a mapping"),
        ({"critic_state_dict": {"mlp.0.weight": np.array([[np.nan]])}}, "critic mlp.0.weight that are not finite"),
    ],
)
def test_what_is_not_known_is_refused_by_name(values, message):
    with pytest.raises(ValueError) as error:
        parse_checkpoint(rlbotics(**values), PATH)
    assert str(error.value).startswith("'model.pt' ") and message in str(error.value)


@pytest.mark.parametrize("values", [{}, {"weight": 1}, {"actor_state_dict": {}}])
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
    assert (found.learning_rate, found.step, found.moments) == (None, 0, {})
