"""Drawing MuJoCo models into numpy arrays, on machines without a screen too."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt8

if TYPE_CHECKING:
    import mujoco


class RenderingError(RuntimeError):
    """Nothing can be drawn: no OpenGL on this machine, or an environment that cannot draw its states."""


@contextlib.contextmanager
def model_renderer(
    model: mujoco.MjModel, width: int, height: int, camera: str | None = None
) -> Iterator[Callable[[mujoco.MjData], UInt8[np.ndarray, "H W 3"]]]:
    """Opens OpenGL for the calling thread and yields draw(data) -> pixels, which only this thread may call.

    MuJoCo's own `Renderer` takes the backend that was chosen when mujoco was first imported: without a screen and
    without MUJOCO_GL, one that needs a screen. Here it is chosen now: the one MUJOCO_GL names; on Linux without it EGL,
    which needs no screen and is at home in any thread, or else OSMesa; elsewhere MuJoCo's.

    Args:
        model: the model; its poses and what follows from them are read from `data`.
        width, height: of the picture, in pixels.
        camera: the name of one of the model's cameras. None: its first, or a free one that sees the whole model.

    Raises:
        KeyError: the model has no such camera.
        RenderingError: no backend works; what to install.
    """
    import mujoco

    view, options = _view(model, camera), mujoco.MjvOption()
    scene = mujoco.MjvScene(model, maxgeom=10_000)
    rectangle = mujoco.MjrRect(0, 0, width, height)
    pixels = np.empty((height, width, 3), np.uint8)
    with contextlib.ExitStack() as stack:
        try:
            gl = _gl_context_class()(width, height)
            stack.callback(gl.free)
            gl.make_current()
            context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        except Exception as error:  # a missing library shows as any of a dozen types, AttributeError among them
            raise RenderingError(_advice(error)) from error
        stack.callback(context.free)
        # Runs first: another renderer of this thread may have been used or closed since.
        stack.callback(gl.make_current)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, context)
        mujoco.mjr_resizeOffscreen(width, height, context)

        def draw(data: mujoco.MjData) -> UInt8[np.ndarray, "H W 3"]:
            gl.make_current()  # the thread may have another renderer
            mujoco.mjv_updateScene(model, data, options, None, view, mujoco.mjtCatBit.mjCAT_ALL, scene)
            mujoco.mjr_render(rectangle, scene, context)
            mujoco.mjr_readPixels(pixels, None, rectangle, context)
            return pixels[::-1].copy()  # OpenGL's first row is the lowest

        yield draw


def _view(model: mujoco.MjModel, name: str | None) -> mujoco.MjvCamera:
    """Returns the camera of that name, or the default one."""
    import mujoco

    view = mujoco.MjvCamera()
    if name is None and model.ncam == 0:
        mujoco.mjv_defaultFreeCamera(model, view)
    else:
        view.type = mujoco.mjtCamera.mjCAMERA_FIXED
        view.fixedcamid = 0 if name is None else model.camera(name).id
    return view


def _gl_context_class() -> Any:
    """Returns the class of MuJoCo's OpenGL contexts to be used."""
    if sys.platform != "linux":
        return importlib.import_module("mujoco").GLContext
    backend = _chosen()
    if backend is None:
        backend = "osmesa" if _egl_failure() else "egl"
    return importlib.import_module(f"mujoco.{'glfw' if backend == 'glx' else backend}").GLContext


def _chosen() -> str | None:
    """Returns what MUJOCO_GL names, or None."""
    value = os.environ.get("MUJOCO_GL", "").strip().lower()
    return None if value in ("", "1", "on", "true", "enable", "enabled") else value


@functools.cache
def _egl_failure() -> str:
    """Returns why EGL gives no context, or "" where it does: what another process says that tries.

    A process that has tried EGL cannot go back to OSMesa: PyOpenGL, through which MuJoCo calls both, binds once.
    """
    code = "from mujoco.egl import GLContext; GLContext(8, 8).make_current()"
    try:
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "no answer"
    if result.returncode == 0:
        return ""
    return _first_sentence((result.stderr.splitlines() or [f"exit status {result.returncode}"])[-1])


def _advice(error: Exception) -> str:
    """Returns what failed, and what is to be done about it."""
    reason = _first_sentence(f"{type(error).__name__}: {error}")
    if sys.platform != "linux":
        return f"MuJoCo cannot draw on this machine ({reason}); choose another backend by MUJOCO_GL."
    if _chosen() is not None:
        tried = f"MUJOCO_GL={_chosen()} ({reason})"
    elif _egl_failure():
        tried = f"EGL ({_egl_failure()}) or OSMesa ({reason})"
    else:
        tried = f"EGL ({reason})"
    return (
        f"MuJoCo cannot draw with {tried}; install EGL (apt install libegl1 libgl1 libgl1-mesa-dri) or OSMesa "
        "(apt install libosmesa6), or choose another backend by MUJOCO_GL."
    )


def _first_sentence(text: str) -> str:
    return text.splitlines()[0].split(". ")[0].rstrip(".")
