"""Deployment: run an exported policy with numpy and onnxruntime alone.

This file needs nothing else of the library and runs on Python 3.8 or later, so that it can be copied beside a policy.
"""

from __future__ import annotations

import json
import math
import os
import reprlib
from pathlib import Path
from typing import Any

import numpy as np

FLOAT32 = np.dtype(np.float32)


class Policy:
    """A policy loaded from an ONNX file.

    The file holds all that the policy needs: observation normalisation, network and the mapping onto the environment's
    action range. Raw observations go in, actions in the environment's units come out, deterministically.

        policy = Policy("logs/mjx_ppo/2026-01-31_10-15-00/policy.onnx")
        action = policy.get_action(observation)

    A recurrent policy remembers: call `reset` where an episode begins, and use one `Policy` per robot, or a batch of
    them. Its file names the inputs and outputs of its memory in its metadata, under `recurrent_states`: a JSON object
    {state input: state output}.

    Args:
        path: an ONNX file with float32 inputs (batch, ...) and one output (batch, actions). One whose batch is fixed at
            1 runs a batch row by row.
        num_threads: threads that one call may use. The default of one is the fastest for a single robot's network, and
            keeps idle worker threads from spinning beside a control loop.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no ONNX model, or not one of a policy.
        ImportError: onnxruntime is not installed.
    """

    def __init__(self, path: str | os.PathLike, num_threads: int = 1) -> None:
        self.path = Path(path)
        self.session = _open(self.path, num_threads)
        inputs = {value.name: value for value in self.session.get_inputs()}
        outputs = {value.name: value for value in self.session.get_outputs()}
        recurrent = _recurrent_states(self.metadata.get("recurrent_states", "{}"))
        actions = [value for name, value in outputs.items() if name not in recurrent.values()]
        if not (
            inputs.keys() > recurrent.keys()
            and outputs.keys() >= set(recurrent.values())
            and all(_is_batch(value) for value in inputs.values())
            and len(actions) == 1
            and len(actions[0].shape) == 2
            and isinstance(actions[0].shape[1], int)
        ):
            raise ValueError(
                f"'{self.path}' is not the model of a policy, which has float32 inputs (batch, ...), one output "
                "(batch, actions), and the inputs and outputs that its metadata names in recurrent_states; it has "
                f"inputs {_shown(inputs)}, outputs {_shown(outputs)}, recurrent_states {recurrent}."
            )
        shapes = {name: tuple(value.shape[1:]) for name, value in inputs.items()}
        self._recurrent = recurrent
        self._state_shapes = {name: shapes.pop(name) for name in recurrent}
        self._shapes = shapes
        self.input_name = next(iter(shapes))
        self._num_actions = actions[0].shape[1]
        self.output_name = actions[0].name
        self._output_names = [self.output_name, *recurrent.values()]
        self._row_by_row = any(value.shape[0] == 1 for value in inputs.values())
        self.reset()

    @property
    def obs_shapes(self) -> dict[str, tuple[int, ...]]:
        """Input name -> shape of one observation."""
        return dict(self._shapes)

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Shape of one observation: (n,), or (C, H, W) of an image.

        Raises:
            ValueError: the policy has several inputs, each with a shape of its own (`obs_shapes`).
        """
        if len(self._shapes) > 1:
            raise ValueError(
                f"Policy '{self.path.name}' reads {_names(self._shapes)}: use obs_shapes, which has a shape for each."
            )
        return self._shapes[self.input_name]

    @property
    def obs_dim(self) -> int:
        """Number of values in one observation; of an image its width, as RLBotics has it. Raises as `obs_shape`."""
        return self.obs_shape[-1]

    @property
    def num_actions(self) -> int:
        """Number of values in one action."""
        return self._num_actions

    @property
    def metadata(self) -> dict[str, str]:
        """What the exporter wrote beside the graph, for example observation groups and control time step."""
        return dict(self.session.get_modelmeta().custom_metadata_map)

    def reset(self) -> None:
        """Forget: a recurrent policy starts from zeros again. Does nothing for others."""
        self._states = {}

    def get_action(self, obs: Any) -> np.ndarray:
        """Compute the action for one observation or for a batch of them.

        Args:
            obs: any array-like (list, tuple, numpy, JAX or torch array) of shape `obs_shape` or (batch, *obs_shape);
                integers, such as the pixels of an image, are passed on as the same numbers. For several inputs a dict
                {input name: array-like}, all single or all of one batch.

        Returns:
            Array of shape (num_actions,) or (batch, num_actions), in the environment's units, of the type that the file
            has: float32, or int64 of discrete actions.

        Raises:
            ValueError: `obs` is no array of numbers, holds a NaN or an infinity, has another shape, lacks an input or
                has an unknown one; or its batch is not the one whose states a recurrent policy keeps.
        """
        given = obs if isinstance(obs, dict) else {self.input_name: obs}
        if given.keys() != self._shapes.keys():
            found = f"one with {_names(obs) or 'nothing'}" if isinstance(obs, dict) else type(obs).__name__
            raise ValueError(
                f"Policy '{self.path.name}' reads a dict with {_names(self._shapes)}, but was given {found}."
            )
        feed, batches = {}, set()
        for name, value in given.items():
            array = self._as_array(name, value)
            single = array.shape == self._shapes[name]
            feed[name] = array[None] if single else array
            batches.add(None if single else len(array))
        if len(batches) > 1:
            raise ValueError(
                f"Policy '{self.path.name}' expects a single observation of each input or the same batch of all, but "
                f"was given the shapes {', '.join(f'{n!r} {tuple(np.shape(value))}' for n, value in given.items())}."
            )
        (batch,) = batches
        if batch is None:
            return self._run(feed)[0]
        if batch > 1 and self._row_by_row:
            if self._recurrent:
                raise ValueError(
                    f"Policy '{self.path.name}' remembers one robot, since its file has a fixed batch of 1, but was "
                    f"given a batch of {batch}: use a Policy for each."
                )
            return np.concatenate([self._run({n: array[i : i + 1] for n, array in feed.items()}) for i in range(batch)])
        return self._run(feed)

    def _run(self, feed: dict[str, np.ndarray]) -> np.ndarray:
        """Run the graph on inputs of shape (batch, ...), with the states of the call before, and keep the new ones."""
        if not self._recurrent:
            return self.session.run(self._output_names, feed)[0]
        batch = len(feed[self.input_name])
        if not self._states:
            self._states = {n: np.zeros((batch, *shape), np.float32) for n, shape in self._state_shapes.items()}
        remembered = len(next(iter(self._states.values())))
        if batch != remembered:
            raise ValueError(
                f"Policy '{self.path.name}' remembers a batch of {remembered}, but was given one of {batch}: call "
                "reset() before the batch changes."
            )
        action, *states = self.session.run(self._output_names, {**feed, **self._states})
        self._states = dict(zip(self._recurrent, states))  # noqa: B905 - strict needs Python 3.10
        return action

    def _as_array(self, name: str, value: Any) -> np.ndarray:
        """Return what was given for an input as float32 array, or say what is wrong with it."""
        if not isinstance(value, np.ndarray) or value.dtype != FLOAT32:
            value = self._converted(name, value)
        expected = self._shapes[name]
        if value.shape != expected and (value.shape[1:] != expected or len(value) == 0):
            shape = ", ".join(str(size) for size in expected)
            raise ValueError(
                f"Policy '{self.path.name}' expects {name!r} of shape {expected} or a batch (batch, {shape}), but was "
                f"given shape {value.shape}."
            )
        # A NaN or an infinity shows in the sum of squares, and so does an overflow, hence the second look. Between two
        # runs of a network the sum costs 2 µs and the second look 4 µs.
        if not math.isfinite(np.vdot(value, value)) and not np.isfinite(value).all():
            index = tuple(np.argwhere(~np.isfinite(value))[0].tolist())
            raise ValueError(
                f"Policy '{self.path.name}' expects finite numbers as {name!r}, but was given {value[index]} at index "
                f"{index}."
            )
        return value

    def _converted(self, name: str, value: Any) -> np.ndarray:
        if hasattr(value, "detach"):  # a torch tensor: numpy refuses one that needs gradients or lives on a GPU
            value = value.detach().cpu()
        try:
            array = np.asarray(value)
        except (TypeError, ValueError):  # nested lists of different lengths
            array = np.asarray(None)
        if array.dtype.kind not in "biuf":
            raise ValueError(
                f"Policy '{self.path.name}' expects an array of numbers as {name!r}, but was given "
                f"{type(value).__name__}: {reprlib.repr(value)}."
            )
        with np.errstate(over="ignore"):  # it becomes an infinity, which is refused
            return array.astype(np.float32)

    def __repr__(self) -> str:
        return f"Policy('{self.path}', obs_shapes={self._shapes}, num_actions={self.num_actions})"


def _open(path: Path, num_threads: int) -> Any:
    """Return the file's onnxruntime session; see `Policy` for the errors."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no policy file '{path}'.")
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(
            "Running an exported policy needs onnxruntime; install it with: pip install onnxruntime"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(num_threads)
    options.inter_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(str(path), sess_options=options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a different class for every kind of broken file
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"'{path}' cannot be loaded as an ONNX model: {reason}") from error


def _is_batch(value: Any) -> bool:
    """Tell whether a graph's input is float32 (batch, ...), its batch free or 1 and its other sizes known."""
    batch, *sizes = value.shape or [0]
    free = batch == 1 or not isinstance(batch, int)
    return value.type == "tensor(float)" and free and bool(sizes) and all(isinstance(size, int) for size in sizes)


def _recurrent_states(text: str) -> dict[str, str]:
    """Return {state input: state output} of the metadata; what is no such object comes back as a name of no input."""
    try:
        states = json.loads(text)
    except ValueError:
        states = text
    is_object = isinstance(states, dict) and all(isinstance(name, str) for name in states.values())
    return states if is_object else {str(states): str(states)}


def _shown(values: dict[str, Any]) -> str:
    return ", ".join(f"{name!r} {value.type} {value.shape}" for name, value in values.items())


def _names(values: dict[str, Any]) -> str:
    return ", ".join(repr(name) for name in values)
