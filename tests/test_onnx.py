"""bridges.onnx: exported graphs against a forward pass in numpy, and the exporter's refusals."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from flax import linen as nn

import rlbotics_jax
from bridges.onnx import ExportError, export_function, export_onnx
from bridges.policy import Policy

ROOT = Path(__file__).parents[1]
GROUPS = {"joints": (5,), "command": (3,)}
SIZE = 8
LOW = np.array([[-1.0, -300.0, 0.0]], np.float32)
HIGH = np.array([[2.0, 100.0, 0.04]], np.float32)


def make_parameters(seed=0, hidden=(32, 16), normaliser=True):
    """Random weights behind a normaliser that is far from the identity (means in the hundreds, stds over decades)."""
    random = np.random.default_rng(seed)
    sizes = [SIZE, *hidden, 3]
    layers = [
        (random.normal(size=(a, b)).astype(np.float32) / np.sqrt(a), random.normal(size=b).astype(np.float32) / 4)
        for a, b in itertools.pairwise(sizes)
    ]
    mean = (random.normal(size=(1, SIZE)) * 300).astype(np.float32) if normaliser else np.zeros((1, SIZE), np.float32)
    std = np.exp(random.normal(size=(1, SIZE)) * 2).astype(np.float32) if normaliser else np.ones((1, SIZE), np.float32)
    return layers, mean, std


def jax_policy(parameters, activation="elu"):
    layers, mean, std = parameters

    def policy(observations):
        # By name: under jit the groups of a dict arrive sorted.
        x = observations["o"] if "o" in observations else jnp.concatenate([observations[g] for g in GROUPS], axis=-1)
        x = (x - mean) / (std + np.float32(1e-2))
        for index, (kernel, bias) in enumerate(layers):
            x = x @ kernel + bias[None]
            if index < len(layers) - 1:
                x = getattr(jax.nn, activation)(x)
        return x

    return policy


def numpy_policy(parameters, observations):
    """The oracle: the same ELU network in float64, then clip to [-1, 1] and scale to [LOW, HIGH]."""
    layers, mean, std = parameters
    x = (observations.astype(np.float64) - mean) / (std.astype(np.float64) + 1e-2)
    for index, (kernel, bias) in enumerate(layers):
        x = x @ kernel.astype(np.float64) + bias
        if index < len(layers) - 1:
            x = np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
    return LOW + (np.clip(x, -1, 1) + 1) / 2 * (HIGH - LOW)


def to_bounds(actions):
    return jnp.clip(actions, -1.0, 1.0) * ((HIGH - LOW) / 2) + (HIGH + LOW) / 2


def identity(actions):
    return actions


def typical_observations(parameters, rows, seed=1):
    _, mean, std = parameters
    return (mean + std * np.random.default_rng(seed).normal(size=(rows, SIZE))).astype(np.float32)


def by_group(observations):
    return {"joints": observations[:, :5], "command": observations[:, 5:]}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    parameters = make_parameters()
    path = tmp_path_factory.mktemp("export") / "run" / "policy.onnx"
    metadata = {"library": "rlbotics-jax", "dt": 0.02, "action_low": LOW[0].tolist()}
    returned = export_onnx(
        jax_policy(parameters), GROUPS, to_bounds, path, metadata, by_group(typical_observations(parameters, 16))
    )
    assert returned == path
    return parameters, path


@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_equals_numpy_on_observations_of_the_normaliser(exported, batch):
    parameters, path = exported
    observations = typical_observations(parameters, batch, seed=batch)
    expected = numpy_policy(parameters, observations)
    assert np.mean((expected > LOW) & (expected < HIGH)) > 0.5  # a saturated network would prove little
    np.testing.assert_allclose(Policy(path).get_action(observations) / HIGH, expected / HIGH, rtol=0, atol=1e-5)


def test_single_vector_is_the_first_row(exported):
    parameters, path = exported
    observations, policy = typical_observations(parameters, 2), Policy(path)
    np.testing.assert_allclose(policy.get_action(observations[0]), policy.get_action(observations)[0], rtol=1e-6)


def test_actions_stay_inside_the_bounds_far_outside_the_data(exported):
    _, path = exported
    actions = Policy(path).get_action(np.random.default_rng(0).normal(size=(64, SIZE)) * 1e6)
    assert (actions >= LOW - 1e-4).all() and (actions <= HIGH + 1e-4).all()


def test_signature_and_metadata(exported):
    _, path = exported
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert (model.producer_name, model.producer_version) == ("rlbotics-jax", rlbotics_jax.__version__)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)] and model.ir_version == 8
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in [*model.graph.input, *model.graph.output]
    }
    assert shapes == {"observation": ["batch", 8], "action": ["batch", 3]}
    assert [path.name] == [file.name for file in path.parent.iterdir()]
    metadata = Policy(path).metadata
    assert metadata["library"] == "rlbotics-jax" and metadata["dt"] == "0.02"
    assert metadata["action_low"] == "-1.0,-300.0,0.0"
    assert list(json.loads(metadata["observation_groups"]).items()) == [("joints", 5), ("command", 3)]


def test_graph_of_several_groups_and_of_one_is_clean(exported, tmp_path):
    dense = ["Sub", "Div", "Gemm", "Elu", "Gemm", "Elu", "Gemm", "Clip", "Mul", "Add"]
    assert [node.op_type for node in onnx.load(exported[1]).graph.node] == dense
    path = export_onnx(jax_policy(make_parameters()), {"o": (SIZE,)}, to_bounds, tmp_path / "policy.onnx")
    assert [node.op_type for node in onnx.load(path).graph.node] == dense


def test_what_depends_on_weights_alone_is_computed_before(tmp_path):
    variance, count = jnp.array([[4.0, 9.0]]), jnp.array(3, jnp.uint32)

    def policy(observations):
        scale = jnp.where(count == 0, 1.0, jnp.sqrt(variance) + 1.0)
        return observations["o"] / scale

    path = export_onnx(policy, {"o": (2,)}, identity, tmp_path / "policy.onnx")
    assert [node.op_type for node in onnx.load(path).graph.node] == ["Div"]
    np.testing.assert_array_equal(Policy(path).get_action([6.0, 2.0]), [2.0, 0.5])


def test_control_flow_that_reads_the_weights_of_its_surroundings(tmp_path):
    step = np.array([[0.5, -0.25]], np.float32)

    def policy(observations):
        return jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x + step), observations["o"])

    path = export_onnx(policy, {"o": (2,)}, identity, tmp_path / "policy.onnx")
    expected = np.array([0.3, 0.6])
    for _ in range(3):
        expected = np.tanh(expected + step[0])
    np.testing.assert_allclose(Policy(path).get_action([0.3, 0.6]), expected, rtol=1e-5)


def test_groups_keep_their_order(tmp_path):
    path = export_onnx(
        lambda observations: jnp.concatenate([observations["b"] * 10.0, observations["a"]], axis=-1),
        {"b": (1,), "a": (2,)},
        identity,
        tmp_path / "policy.onnx",
    )
    np.testing.assert_array_equal(Policy(path).get_action([1.0, 2.0, 3.0]), [10.0, 2.0, 3.0])


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "softplus"])
@pytest.mark.parametrize("mapping", [identity, to_bounds])
def test_parity_check_passes_good_graphs(tmp_path, activation, mapping):
    for seed in range(3):
        parameters = make_parameters(seed, hidden=(128, 64, 64))
        export_onnx(
            jax_policy(parameters, activation),
            GROUPS,
            mapping,
            tmp_path / "policy.onnx",
            samples=by_group(typical_observations(parameters, 5)),
        )


@pytest.mark.parametrize("seed", range(4))
def test_rounding_that_float32_leaves_undetermined_is_no_difference(tmp_path, seed):
    # A squashed sum of large numbers: half of these policies are more than 1e-5 away from themselves in float64.
    random = np.random.default_rng(seed)
    first = (random.normal(size=(64, 64)) / 8).astype(np.float32)
    last = (random.normal(size=(64, 3)) * 100).astype(np.float32)
    export_onnx(
        lambda observations: jnp.tanh(jnp.tanh(observations["o"] @ first) @ last),
        {"o": (64,)},
        identity,
        tmp_path / "policy.onnx",
    )


def test_bias_shared_with_another_layer_and_hidden_output_used_twice(tmp_path):
    kernel = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    bias = np.array([1.0, -2.0, 3.0, 0.5], np.float32)

    def policy(observations):
        hidden = observations["o"] @ kernel
        return jnp.tanh(hidden + bias[None]) + hidden + (jnp.tanh(hidden) @ kernel + bias[None])

    policy_file = Policy(export_onnx(policy, {"o": (4,)}, identity, tmp_path / "policy.onnx"))
    observation = np.array([0.1, -0.2, 0.3, 0.4])
    hidden = observation @ kernel
    expected = np.tanh(hidden + bias) + hidden + np.tanh(hidden) @ kernel + bias
    np.testing.assert_allclose(policy_file.get_action(observation), expected, rtol=1e-5)


def test_jitted_policy_exports_and_still_runs_afterwards(tmp_path):
    parameters = make_parameters(normaliser=False)
    policy = jax.jit(jax_policy(parameters))
    observations = np.random.default_rng(2).normal(size=(3, SIZE)).astype(np.float32)
    groups = {"joints": jnp.asarray(observations[:, :5]), "command": jnp.asarray(observations[:, 5:])}
    before = to_bounds(policy(groups))
    path = export_onnx(policy, GROUPS, to_bounds, tmp_path / "policy.onnx")
    np.testing.assert_array_equal(to_bounds(policy(groups)), before)
    np.testing.assert_array_equal(jax.jit(lambda g: to_bounds(policy(g)))(groups).shape, before.shape)
    np.testing.assert_allclose(Policy(path).get_action(observations), before, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(before, numpy_policy(parameters, observations), rtol=1e-4, atol=1e-4)


def is_traced(x):
    """Whether this is the conversion: a function that asks computes other things in the graph than when evaluated."""
    return isinstance(x, jax.core.Tracer)


def test_policy_whose_graph_differs_is_refused_and_the_old_file_stays(tmp_path):
    def impure(observations):
        return observations["o"] * (1.0 + 1e-4 * is_traced(observations["o"]))

    path = tmp_path / "policy.onnx"
    path.write_bytes(b"the old policy")
    with pytest.raises(ExportError, match=r"ONNX Runtime and JAX differ by .* in action \d at batch \d+ on random"):
        export_onnx(impure, {"o": (2,)}, identity, path)
    assert path.read_bytes() == b"the old policy" and list(tmp_path.iterdir()) == [path]


def test_small_component_beside_a_large_one_is_checked_in_its_own_units(tmp_path):
    def impure(observations):
        return observations["o"] * jnp.array([[1.0, 1.0 + 1e-3 * is_traced(observations["o"])]])

    with pytest.raises(ExportError, match="in action 1 at batch"):
        export_onnx(impure, {"o": (2,)}, lambda a: a * jnp.array([[1e4, 1e-4]]), tmp_path / "policy.onnx")


def test_samples_are_compared_too(tmp_path):
    def impure(observations):
        return jnp.where(observations["o"] > 1e4, 1.0 + is_traced(observations["o"]), 0.5)

    with pytest.raises(ExportError, match="on the sample observations"):
        export_onnx(impure, {"o": (1,)}, identity, tmp_path / "policy.onnx", samples={"o": np.array([[2e4]])})


def test_jax_is_as_it_was_after_an_export(tmp_path):
    modules = (jnp, jax.nn, jax.lax, jnp.linalg, nn)
    before = [dict(vars(module)) for module in modules]
    export_onnx(lambda o: jnp.cumsum(o["o"], -1), {"o": (2,)}, identity, tmp_path / "policy.onnx")
    changed = [
        name
        for module, attributes in zip(modules, before, strict=True)
        for name, value in attributes.items()
        if vars(module)[name] is not value
    ]
    assert changed == []
    np.testing.assert_array_equal(jnp.cumsum(jnp.ones((1, 3)), -1), [[1.0, 2.0, 3.0]])


def test_an_uncertain_component_does_not_excuse_another(tmp_path):
    def impure(observations):  # sin(100 x) of large x is uncertain in its third digit; the other is wrong in its third
        x = observations["o"]
        return jnp.concatenate([jnp.sin(100.0 * x), jnp.tanh(x) * (1.0 + 5e-3 * is_traced(x))], axis=-1)

    with pytest.raises(ExportError, match="in action 1 at batch"):
        export_onnx(impure, {"o": (1,)}, identity, tmp_path / "policy.onnx")


def test_a_policy_that_overflows_far_from_its_data(tmp_path):
    path = export_onnx(lambda o: jnp.exp(o["o"]), {"o": (1,)}, identity, tmp_path / "policy.onnx")
    np.testing.assert_allclose(Policy(path).get_action([1.0]), [np.e], rtol=1e-6)


def test_weights_of_a_loop_that_are_not_used_are_dropped(tmp_path, capfd):
    def policy(observations):
        return jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x) * 0.5, observations["o"])

    Policy(export_onnx(policy, {"o": (2,)}, identity, tmp_path / "policy.onnx"))
    assert "CleanUnused" not in capfd.readouterr().err


def test_one_value_under_two_names(tmp_path):
    # The action of a recurrent policy may be its new state; an identity gives its input back.
    path = export_function(lambda x: (x, x), {"x": (2,)}, ["action", "state"], tmp_path / "policy.onnx")
    assert [value.name for value in onnx.load(path).graph.output] == ["action", "state"]


class Factors(nn.Module):
    """A module that no ONNX graph computes."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4, name="first")(x)
        return nn.Dense(2, name="last")(Decomposition(name="middle")(x))


class Decomposition(nn.Module):
    def __call__(self, x):
        return jnp.linalg.svd(jnp.reshape(x, (-1, 2, 2)), compute_uv=False)


def test_what_cannot_be_converted_is_named_with_its_layer(tmp_path):
    module = Factors()
    parameters = module.init(jax.random.key(0), jnp.zeros((1, 3)))
    with pytest.raises(ExportError) as caught:
        export_onnx(lambda o: module.apply(parameters, o["o"]), {"o": (3,)}, identity, tmp_path / "policy.onnx")
    assert str(caught.value) == (
        "jax2onnx cannot convert the primitive 'svd' in the layer 'Factors/middle' (NotImplementedError: svd currently "
        "supports rank-2 inputs only)."
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda o: o["o"][:, 0], r"an output of shape \(1,\) for a batch of 1 observation, not \(1, actions\)"),
        (
            lambda o: o["o"] + jnp.array([[jnp.inf, 0.0]]),
            r"actions that are not finite on random observations of magnitude 0\.1",
        ),
        (lambda o: jnp.asarray(np.asarray(o["o"])), r"jax2onnx cannot convert this policy \(Tracer"),
    ],
    ids=["shape", "non-finite", "unconvertible"],
)
def test_unusable_policies_leave_no_file(tmp_path, policy, message):
    with pytest.raises(ExportError, match=message):
        export_onnx(policy, {"o": (2,)}, identity, tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


def test_bad_arguments(tmp_path):
    policy = jax_policy(make_parameters())
    for shapes in ({}, {"joints": (0,)}, {"joints": (4, 4)}):
        with pytest.raises(ValueError, match="must map at least one group to a shape"):
            export_onnx(policy, shapes, identity, tmp_path / "policy.onnx")
    with pytest.raises(
        ValueError, match=r"samples must have the shapes 'joints' \(k, 5\), 'command' \(k, 3\) with one k"
    ):
        export_onnx(policy, GROUPS, identity, tmp_path / "policy.onnx", samples=by_group(np.zeros((2, 7))))


def test_several_inputs_and_outputs(tmp_path):
    # What a recurrent policy needs: its state goes in and comes out. Twenty steps against numpy.
    kernel = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)

    def step(observation, state):
        state = 0.5 * state + jnp.tanh(observation @ kernel)
        return state * 2.0, state

    path = export_function(
        step,
        {"observation": (3,), "state_in": (2,)},
        ["action", "state_out"],
        tmp_path / "policy.onnx",
        {"recurrent_states": {"state_in": "state_out"}},
    )
    graph = onnx.load(path).graph
    assert [value.name for value in graph.input] == ["observation", "state_in"]
    assert [value.name for value in graph.output] == ["action", "state_out"]
    policy, state = Policy(path), np.zeros((2, 2))
    for observation in np.random.default_rng(1).normal(size=(20, 2, 3)):
        state = 0.5 * state + np.tanh(observation @ kernel)
        np.testing.assert_allclose(policy.get_action(observation), 2 * state, rtol=1e-5, atol=1e-6)


def test_a_wrong_second_output_is_found(tmp_path):
    def impure(x):
        return 2.0 * x, x * (1.0 + 0.1 * is_traced(x))

    with pytest.raises(ExportError, match="differ by .* in state 0 at batch 1"):
        export_function(impure, {"x": (1,)}, ["action", "state"], tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


IMAGE = (2, 5, 4)


def test_one_image_is_the_observation(tmp_path):
    kernel = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    path = export_onnx(
        lambda observations: jnp.reshape(observations["camera"], (-1, 40)) @ kernel,
        {"camera": IMAGE},
        identity,
        tmp_path / "policy.onnx",
    )
    (value,) = onnx.load(path).graph.input
    shape = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
    assert (value.name, shape) == ("observation", ["batch", *IMAGE])
    image = np.random.default_rng(1).normal(size=IMAGE).astype(np.float32)
    np.testing.assert_allclose(Policy(path).get_action(image), image.reshape(-1) @ kernel, rtol=1e-5, atol=1e-5)


def test_an_image_beside_other_groups_has_an_input_of_its_own(tmp_path):
    kernel = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    samples = {"joints": np.ones((2, 3)), "camera": np.ones((2, *IMAGE))}
    path = export_onnx(
        lambda observations: jnp.reshape(observations["camera"], (-1, 40)) @ kernel + observations["joints"],
        {"joints": (3,), "camera": IMAGE},
        identity,
        tmp_path / "policy.onnx",
        samples=samples,
    )
    assert [value.name for value in onnx.load(path).graph.input] == ["joints", "camera"]
    assert json.loads(Policy(path).metadata["observation_groups"]) == {"joints": 3, "camera": [2, 5, 4]}
    action = Policy(path).get_action({"joints": [1.0, 2.0, 3.0], "camera": samples["camera"][0]})
    np.testing.assert_allclose(action, kernel.sum(axis=0) + np.arange(1.0, 4.0), rtol=1e-5)


def test_missing_jax2onnx_names_the_pip_command(tmp_path):
    code = (
        "import sys; sys.modules['jax2onnx'] = None\n"
        "from bridges.onnx import export_onnx\n"
        f"try: export_onnx(lambda o: o['o'], {{'o': (2,)}}, lambda a: a, {str(tmp_path / 'policy.onnx')!r})\n"
        "except ImportError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == (
        "Exporting a policy needs the package 'jax2onnx'; install it with: pip install 'rlbotics-jax[onnx]'"
    )


class Pooled(nn.Module):
    """A module that names its pooling's arguments by position, which the exporter's patch does not take."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.avg_pool(x[..., None], (2,), (2,))[..., 0])


def test_a_failure_while_tracing_names_the_module(tmp_path):
    module = Pooled()
    parameters = module.init(jax.random.key(0), jnp.zeros((1, 4)))
    with pytest.raises(ExportError, match=r"cannot convert this policy in the layer 'Pooled' \(TypeError: AvgPool"):
        export_onnx(lambda o: module.apply(parameters, o["o"]), {"o": (4,)}, identity, tmp_path / "policy.onnx")


def test_what_is_no_valid_onnx_is_said(tmp_path):
    with pytest.raises(ExportError, match="What jax2onnx made of this policy is not valid ONNX .*CumProd"):
        export_onnx(lambda o: jnp.cumprod(o["o"], axis=-1), {"o": (4,)}, identity, tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())
