"""How the observation groups of a policy become the inputs of the file that is deployed, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array

INPUT, OUTPUT = "observation", "action"


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of a policy that reads these groups, group -> shape, (n,) or (C, H, W), in their order.

    Vectors alone are one input `observation` (batch, n), side by side; one image alone is `observation` (batch, C, H,
    W); of images and other groups each is an input of its own, by its name. (A group `action` becomes `action_input`:
    the output has that name.)
    """

    groups: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, shapes: Mapping[str, Sequence[int]]) -> Inputs:
        """Returns the inputs for these groups.

        Raises:
            ValueError: there is no group, or a shape is no vector's or image's.
        """
        groups = {str(name): tuple(int(size) for size in shape) for name, shape in shapes.items()}
        if not groups or not all(len(shape) in (1, 3) and min(shape) > 0 for shape in groups.values()):
            raise ValueError(
                "observation_shapes must map at least one group to a shape (n,) or (C, H, W) of positive sizes, not "
                f"{groups}."
            )
        return cls(groups)

    @property
    def is_one_vector(self) -> bool:
        """Whether all groups are vectors, which stand side by side."""
        return all(len(shape) == 1 for shape in self.groups.values())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Input name -> shape of one row."""
        if self.is_one_vector:
            return {INPUT: (sum(size for (size,) in self.groups.values()),)}
        if len(self.groups) == 1:
            return {INPUT: next(iter(self.groups.values()))}
        return {f"{OUTPUT}_input" if group == OUTPUT else group: shape for group, shape in self.groups.items()}

    def split(self, *arrays: Array) -> dict[str, Array]:
        """Returns {group: (batch, *shape)} of the inputs' arrays; a single group is passed on without a slice."""
        if not self.is_one_vector or len(self.groups) == 1:
            return dict(zip(self.groups, arrays, strict=True))
        sizes = [size for (size,) in self.groups.values()]
        ends = np.cumsum(sizes).tolist()
        return {
            group: arrays[0][:, end - size : end] for group, size, end in zip(self.groups, sizes, ends, strict=True)
        }

    def join(self, observations: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns input -> rows of {group: rows}, as float32.

        Raises:
            ValueError: a group is missing, or has other rows than the shapes and the other groups ask for.
        """
        if missing := [group for group in self.groups if group not in observations]:
            raise ValueError(f"The samples lack the group {missing[0]!r}; given are {', '.join(observations)}.")
        rows = [np.asarray(observations[group], np.float32) for group in self.groups]
        shapes = {group: array.shape for group, array in zip(self.groups, rows, strict=True)}
        if any(s[1:] != self.groups[g] for g, s in shapes.items()) or len({s[0] for s in shapes.values()}) > 1:
            wanted = ", ".join(f"{group!r} ({', '.join(map(str, ('k', *s)))})" for group, s in self.groups.items())
            raise ValueError(f"The samples must have the shapes {wanted} with one k for all, not {shapes}.")
        return dict(zip(self.shapes, [np.concatenate(rows, axis=-1)] if self.is_one_vector else rows, strict=True))
