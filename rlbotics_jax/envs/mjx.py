"""The base of MuJoCo MJX tasks: a model, a reset, observations and named reward terms."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import math
from collections.abc import Callable, Iterator
from typing import ClassVar

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, PyTree, UInt8

from rlbotics_jax.envs.base import State
from rlbotics_jax.rendering import model_renderer
from rlbotics_jax.types import Observations

with contextlib.redirect_stdout(io.StringIO()):  # mjx prints that warp is missing, which the impl "jax" never needs
    from mujoco import mjx


@struct.dataclass
class IntegrationState:
    """What the next physics step depends on, MuJoCo's mjSTATE_INTEGRATION: the `data` of an environment's state.

    Everything else in `mjx.Data` follows from it. A run keeps two states per environment and selects between them at
    every step, and checkpoints hold them; of the cart-pole's `mjx.Data` this is a tenth.
    """

    time: Array
    qpos: Array
    qvel: Array
    act: Array
    qacc_warmstart: Array
    ctrl: Array
    qfrc_applied: Array
    xfrc_applied: Array
    eq_active: Array
    mocap_pos: Array
    mocap_quat: Array
    userdata: Array | None
    history: Array | None
    plugin_state: Array | None

    @classmethod
    def of(cls, data: mjx.Data) -> IntegrationState:
        """Returns the part of `data` that is kept; None for what this MuJoCo does not have."""
        return cls(**{field.name: getattr(data, field.name, None) for field in dataclasses.fields(cls)})

    def restore(self, model: mujoco.MjModel) -> mjx.Data:
        """Returns `mjx.Data` that steps from here; what follows from the rest is not computed yet."""
        return mjx.make_data(model, impl="jax").replace(**self._known())

    def copy_to(self, data: mujoco.MjData) -> None:
        """Writes the state into C MuJoCo's data; what follows from it is not computed yet."""
        for name, value in self._known().items():
            setattr(data, name, np.asarray(value))

    def _known(self) -> dict[str, Array]:
        """Returns what this MuJoCo has, by name."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class MjxEnvironment:
    """One task simulated by MuJoCo MJX on the accelerator.

    A task sets `xml` and overrides `initial_state`, `observations` and `reward`, and `terminated` where states are
    terminal. Settings are dataclass fields, so that equal tasks share a compiled program.

    Attributes:
        episode_length: time limit in steps.
        xml: (class attribute) the MJCF model, as text.
        substeps: (class attribute) physics steps per action; dt = substeps * the model's timestep.
        forward_at_reset: (class attribute) whether a reset computes what follows from positions and velocities (body
            poses, sensors, contacts). A task that observes and rewards `qpos` and `qvel` alone sets it to False: the
            forward pass of a reset is a third of what there is to compile.
        camera: (class attribute) name of the model's camera that videos show; None for its first one, or, of a model
            without cameras, for a view of the whole.
    """

    episode_length: int = 1000
    xml: ClassVar[str]
    substeps: ClassVar[int] = 1
    forward_at_reset: ClassVar[bool] = True
    camera: ClassVar[str | None] = None

    @property
    def model(self) -> mujoco.MjModel:
        """The compiled MuJoCo model."""
        return _load(self.xml)[0]

    @property
    def num_actions(self) -> int:
        """Number of actuators."""
        return self.model.nu

    @property
    def action_low(self) -> tuple[float, ...]:
        """Lower control limits of the actuators; -inf where one has none."""
        return tuple(float(low) if limited else -math.inf for low, limited in self._control_limits(0))

    @property
    def action_high(self) -> tuple[float, ...]:
        """Upper control limits of the actuators; inf where one has none."""
        return tuple(float(high) if limited else math.inf for high, limited in self._control_limits(1))

    @property
    def dt(self) -> float:
        """Seconds between two actions."""
        return self.substeps * self.model.opt.timestep

    @property
    def metadata(self) -> dict[str, list[str]]:
        """What exported policies tell of the task: the actuators' names, in the order of the action."""
        return {"action_names": [self.model.actuator(i).name or f"actuator_{i}" for i in range(self.model.nu)]}

    def initial_state(self, key: Array) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
        """Returns random initial positions and velocities; the model's `qpos0` at rest unless overridden."""
        return jnp.asarray(self.model.qpos0, jnp.float32), jnp.zeros(self.model.nv)

    def observations(self, data: mjx.Data) -> Observations:
        """Returns the observation groups, each a float32 vector. To be overridden."""
        return {"observation": jnp.concatenate([data.qpos, data.qvel])}

    def reward(self, data: mjx.Data, action: Float[Array, " A"]) -> dict[str, Float[Array, ""]]:
        """Returns the reward's named terms, each logged as `Reward/<name>`; the reward is their sum. To be overridden.

        Args:
            data: the physics after the step.
            action: the physical action that led there.
        """
        return {"constant": jnp.ones(())}

    def terminated(self, data: mjx.Data) -> Bool[Array, ""]:
        """Returns whether the state is terminal; never, unless overridden."""
        return jnp.zeros((), bool)

    def physics(self, state: State) -> PyTree:
        """Returns what must stay finite: positions and velocities."""
        return state.data.qpos, state.data.qvel

    def reset(self, key: Array) -> State:
        """Returns a random initial state with reward 0."""
        qpos, qvel = self.initial_state(key)
        data = mjx.make_data(self.model, impl="jax").replace(qpos=qpos, qvel=qvel)
        if self.forward_at_reset:
            data = mjx.forward(_load(self.xml)[1], data)
        state = self._evaluate(data, jnp.zeros(self.num_actions))
        return state.replace(reward=jnp.zeros(()), metrics=jax.tree.map(jnp.zeros_like, state.metrics))

    def step(self, state: State, action: Float[Array, " A"]) -> State:
        """Applies the action for `substeps` physics steps."""
        model = _load(self.xml)[1]
        data = state.data.restore(self.model).replace(ctrl=action)
        if self.substeps == 1:
            data = mjx.step(model, data)
        else:  # a loop, not an unrolled one: four substeps compile in 8 s instead of 22 s and run as fast
            data = jax.lax.fori_loop(0, self.substeps, lambda _, data: mjx.step(model, data), data)
        return self._evaluate(data, action)

    @contextlib.contextmanager
    def renderer(self, width: int, height: int) -> Iterator[Callable[[State], UInt8[np.ndarray, "H W 3"]]]:
        """Yields draw(state) -> pixels, for the calling thread; see `rendering.model_renderer` and its errors."""
        data = mujoco.MjData(self.model)
        with model_renderer(self.model, width, height, self.camera) as draw_data:

            def draw(state: State) -> UInt8[np.ndarray, "H W 3"]:
                state.data.copy_to(data)
                mujoco.mj_forward(self.model, data)
                return draw_data(data)

            yield draw

    def _evaluate(self, data: mjx.Data, action: Float[Array, " A"]) -> State:
        """Returns the state of the given physics."""
        terms = self.reward(data, action)
        return State(
            data=IntegrationState.of(data),
            observations=self.observations(data),
            reward=sum(terms.values(), start=jnp.zeros(())),
            terminated=self.terminated(data),
            metrics={f"Reward/{name}": term for name, term in terms.items()},
        )

    def _control_limits(self, side: int) -> list[tuple[float, bool]]:
        """Returns the lower (0) or upper (1) limit of each actuator, and whether it is limited."""
        return list(zip(self.model.actuator_ctrlrange[:, side], self.model.actuator_ctrllimited, strict=True))


@functools.lru_cache(maxsize=16)
def _load(xml: str) -> tuple[mujoco.MjModel, mjx.Model]:
    """Returns the compiled model and its MJX form (impl "jax": the one that runs on CPU, GPU and TPU alike)."""
    model = mujoco.MjModel.from_xml_string(xml)
    # Concrete arrays even where the first call happens inside a trace: a traced one would leak into later programs.
    with jax.ensure_compile_time_eval():
        return model, mjx.put_model(model, impl="jax")
