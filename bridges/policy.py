"""Deployment: run an exported policy with numpy and onnxruntime alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


class Policy:
    """A policy loaded from an ONNX file.

    The file holds all that the policy needs: observation normalisation, network and the mapping onto the environment's
    action range. Raw observations go in, actions in the environment's units come out, deterministically.

        policy = Policy("logs/mjx_ppo/2026-01-31_10-15-00/policy.onnx")
        action = policy.get_action(observation)

    Args:
        path: an ONNX file with one input whose first dimension is the batch, and one output.
        num_threads: threads that one call may use. The default of one is the fastest for a single robot's network, and
            keeps idle worker threads from spinning beside a control loop.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no ONNX model, or not one of a policy.
        ImportError: onnxruntime is not installed.
    """

    def __init__(self, path: str | Path, num_threads: int = 1) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"There is no policy file '{self.path}'.")
        try:
            import onnxruntime
        except ImportError as error:
            raise ImportError(
                "Running an exported policy needs onnxruntime; install it with: pip install onnxruntime"
            ) from error

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        try:
            self._session = onnxruntime.InferenceSession(
                str(self.path), sess_options=options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime raises a different class for every kind of broken file
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ValueError(f"'{self.path}' cannot be loaded as an ONNX model: {reason}") from error

        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1 or len(inputs[0].shape) < 2 or len(outputs[0].shape) != 2:
            found = f"inputs {[(i.name, i.shape) for i in inputs]}, outputs {[(o.name, o.shape) for o in outputs]}"
            raise ValueError(
                f"'{self.path}' is not the model of a feed-forward policy, which has one input (batch, ...) and one "
                f"output (batch, actions); it has {found}."
            )
        self._input_name, self._output_name = inputs[0].name, outputs[0].name
        self._observation_shape = tuple(inputs[0].shape[1:])
        self._num_actions = outputs[0].shape[1]

    @property
    def obs_dim(self) -> int:
        """Number of values in one observation (the last dimension of an image)."""
        return int(self._observation_shape[-1])

    @property
    def num_actions(self) -> int:
        """Number of values in one action."""
        return int(self._num_actions)

    @property
    def metadata(self) -> dict[str, str]:
        """What the exporter wrote beside the graph, for example observation groups and control time step."""
        return dict(self._session.get_modelmeta().custom_metadata_map)

    def get_action(self, obs: Any) -> np.ndarray:
        """Compute the action for one observation or for a batch of them.

        Args:
            obs: any array-like (list, tuple, numpy, JAX or torch array) of shape (obs_dim,) or (batch, obs_dim).

        Returns:
            float32 array of shape (num_actions,) or (batch, num_actions), in the environment's units.

        Raises:
            ValueError: `obs` is no array of numbers, or has another shape.
        """
        observation = self._as_array(obs)
        rank = len(self._observation_shape)
        single = observation.ndim == rank
        if single:
            observation = observation[None]
        if observation.ndim != rank + 1 or observation.shape[1:] != self._observation_shape:
            shape = ", ".join(str(size) for size in self._observation_shape)
            one = f"({shape},)" if rank == 1 else f"({shape})"
            given = observation.shape[1:] if single else observation.shape
            raise ValueError(
                f"Policy '{self.path.name}' expects an observation of shape {one} or a batch (batch, {shape}), "
                f"but was given shape {given}."
            )
        action = self._session.run([self._output_name], {self._input_name: observation})[0]
        return action[0] if single else action

    def _as_array(self, obs: Any) -> np.ndarray:
        """Convert any array-like to a float32 array."""
        if hasattr(obs, "detach"):  # a torch tensor: numpy refuses one that needs gradients or lives on a GPU
            obs = obs.detach().cpu()
        try:
            return np.asarray(obs, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Policy '{self.path.name}' expects an array of numbers as observation, but was given "
                f"{type(obs).__name__} that is none: {error}."
            ) from error

    def __repr__(self) -> str:
        return f"Policy('{self.path}', obs_dim={self.obs_dim}, num_actions={self.num_actions})"
