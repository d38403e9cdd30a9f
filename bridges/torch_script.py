"""A policy as a module of torch, traced for any batch size and compared with JAX. Imported only where torch is."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from bridges.inputs import Inputs
from bridges.onnx_parity import BATCHES, compare_output, evaluate_all
from bridges.torch_files import write_bytes
from bridges.torch_names import encoder_prefixes, network_entries, to_torch
from bridges.torch_statistics import statistics_to_torch
from rlbotics_jax.algorithms import PPO
from rlbotics_jax.cnn import encoder_layers
from rlbotics_jax.config import CNNEncoderConfig
from rlbotics_jax.distributions import SquashedGaussianDistribution
from rlbotics_jax.normalization import EPSILON, NormalizerState, has_rows
from rlbotics_jax.policy import TrainedPolicy

_ACTIVATIONS = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "lrelu": nn.LeakyReLU,
    "leaky_relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "gelu": nn.GELU,
    "swish": nn.SiLU,
    "mish": nn.Mish,
    "identity": nn.Identity,
}


class _CReLU(nn.Module):
    """[relu(x), relu(-x)], side by side along the axis 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.relu(x), torch.relu(-x)], dim=1)


class _Normalizer(nn.Module):
    """(x - mean) / scale, with statistics of the axis 1, bounded to [-clip, clip] where there is a bound."""

    def __init__(self, state: NormalizerState, clip: float | None, ndim: int):
        super().__init__()
        scale = jnp.where(has_rows(state), jnp.sqrt(state.variance) + EPSILON, 1.0)
        for name, array in (("mean", state.mean), ("scale", scale)):
            self.register_buffer(name, torch.tensor(np.asarray(array)).reshape(1, -1, *(1,) * (ndim - 2)))
        self.clip = clip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x - self.mean) / self.scale
        return x if self.clip is None else x.clamp(-self.clip, self.clip)


class _Policy(nn.Module):
    """The actor: its inputs, each scaled and normalised, images through their encoders, an MLP, the squashing."""

    def __init__(self, algorithm: PPO, policy: TrainedPolicy, inputs: Mapping[str, tuple[int, ...]]):
        super().__init__()
        model, network = algorithm.actor, policy.parameters["actor"]["network"]
        arrays = to_torch(network_entries("actor", model, network), policy.parameters)["actor"]
        statistics = policy.parameters["normalizer"]
        self.is_bytes = [name in policy.groups and policy.spec.dtype(name) == np.uint8 for name in inputs]
        self.normalizers, self.encoders = nn.ModuleList(), nn.ModuleList()
        prefixes = encoder_prefixes(network["params"])
        for name, shape in inputs.items():
            state = statistics if isinstance(statistics, NormalizerState | None) else statistics.observations.get(name)
            has_state = state is not None
            self.normalizers.append(_Normalizer(state, model.obs_clip, len(shape) + 1) if has_state else nn.Identity())
            encoder = nn.Identity()
            if name in prefixes:
                buffers = statistics_to_torch(model, network, statistics)
                encoder = _encoder(model.module.encoder_config(name), shape, _under(prefixes[name], arrays | buffers))
            self.encoders.append(encoder)
        self.mlp = _mlp(model.module.activation, _under("mlp", arrays))
        is_squashed = isinstance(algorithm.distribution, SquashedGaussianDistribution)
        self.squash = nn.Tanh() if is_squashed else nn.Identity()

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        vectors, features = [], []
        stages = zip(inputs, self.is_bytes, self.normalizers, self.encoders, strict=True)
        for x, is_bytes, normalizer, encoder in stages:
            x = normalizer(x.to(torch.float32) / 255.0 if is_bytes else x)
            (vectors if x.ndim == 2 else features).append(encoder(x))
        parts = [*vectors, *features]
        return self.squash(self.mlp(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)))


def _under(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): torch.tensor(a) for name, a in arrays.items() if name.startswith(start)}


def _activation(name: str) -> nn.Module:
    return _CReLU() if name == "crelu" else _ACTIVATIONS[name]()


def _mlp(activation: str, arrays: dict[str, torch.Tensor]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for weight in (array for array in arrays.values() if array.ndim == 2):
        layers += [nn.Linear(weight.shape[1], weight.shape[0]), _activation(activation)]
    return _with_arrays(nn.Sequential(*layers[:-1]), arrays)


def _encoder(config: CNNEncoderConfig, shape: tuple[int, ...], arrays: dict[str, torch.Tensor]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for layer in encoder_layers(config, shape[1:]):
        layers.append(
            nn.Conv2d(
                arrays[f"{len(layers)}.weight"].shape[1],
                layer.channels,
                layer.kernel,
                layer.stride,
                layer.padding,
                layer.dilation,
                padding_mode="zeros" if config.padding == "none" else config.padding,
            )
        )
        if layer.norm != "none":
            size = arrays[f"{len(layers)}.weight"].shape
            layers.append(nn.BatchNorm2d(size[0]) if layer.norm == "batch" else nn.LayerNorm(size))
        layers.append(_activation(config.activation))
        if layer.max_pool:
            layers.append(nn.MaxPool2d(kernel_size=3, stride=2, padding=1))
    if config.global_pool != "none":
        layers.append((nn.AdaptiveMaxPool2d if config.global_pool == "max" else nn.AdaptiveAvgPool2d)((1, 1)))
    return _with_arrays(nn.Sequential(*layers, nn.Flatten()), arrays)


def _with_arrays(module: nn.Sequential, arrays: dict[str, torch.Tensor]) -> nn.Sequential:
    module.load_state_dict(arrays, strict=True)
    return module


def write_torchscript(algorithm: PPO, policy: TrainedPolicy, path: str | os.PathLike) -> Path:
    """Writes the traced module; see `bridges.torch.export_torchscript`."""
    inputs = Inputs.of(policy.shapes)
    act, samples = policy.act_on_floats(), inputs.join(policy.typical_observations())

    def in_jax(*arrays: jax.Array) -> tuple[jax.Array]:
        return (act(inputs.split(*arrays)),)

    references = evaluate_all(in_jax, inputs.shapes, ["action"], samples)
    module = _Policy(algorithm, policy, inputs.shapes if inputs.is_one_vector else inputs.groups).eval()
    data = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.*")  # it is what RLBotics deploys, deprecated or not
        examples = tuple(torch.tensor(rows[:2]) for rows in samples.values())
        torch.jit.save(torch.jit.trace(module, examples), data)
        written = torch.jit.load(io.BytesIO(data.getvalue()))
        for name, reference in references.items():
            tensors = [torch.tensor(rows) for rows in reference.inputs.values()]
            found = [written(*(rows[:size] for rows in tensors)).numpy() for size in BATCHES]
            compare_output("TorchScript", found, reference, 0, "action", name)
    return write_bytes(data.getvalue(), path)
