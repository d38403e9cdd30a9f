"""Drawing models: what is seen, from which camera, in which thread, and what is said where nothing can be drawn."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import mujoco
import numpy as np
import pytest
from drawing import opengl_or_advice

from rlbotics_jax.rendering import model_renderer

ROOT = Path(__file__).parents[1]

BALLS = """
<mujoco>
  <visual><headlight ambient="1 1 1" diffuse="0 0 0" specular="0 0 0"/></visual>
  <worldbody>
    {cameras}
    <geom type="sphere" size="0.2" pos="-1 0 0" rgba="1 0 0 1"/>
    <body name="blue" mocap="true" pos="1 0 0"><geom type="sphere" size="0.2" rgba="0 0 1 1"/></body>
  </worldbody>
</mujoco>
"""
FRONT = '<camera name="front" pos="0 -4 0" xyaxes="1 0 0 0 0 1"/>'
BACK = '<camera name="back" pos="0 4 0" xyaxes="-1 0 0 0 0 1"/>'


def model_and_data(cameras=""):
    model = mujoco.MjModel.from_xml_string(BALLS.format(cameras=cameras))
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def centre(picture, colour):
    """Returns where a colour is seen, as fractions of width and height."""
    others = [channel for channel in range(3) if channel != colour]
    rows, columns = np.nonzero((picture[..., colour] > 100) & (picture[..., others].max(axis=-1) < 50))
    assert len(rows) > 20, "not seen"
    return columns.mean() / picture.shape[1], rows.mean() / picture.shape[0]


def test_every_camera_sees_its_own_picture():
    for cameras, camera, red_is_left in [
        (FRONT + BACK, None, True),
        (BACK + FRONT, None, False),
        (FRONT + BACK, "back", False),
    ]:
        model, data = model_and_data(cameras)
        with opengl_or_advice(), model_renderer(model, 160, 120, camera) as draw:
            picture = draw(data)
            assert picture.dtype == np.uint8 and picture.shape == (120, 160, 3)
            red, blue = centre(picture, 0), centre(picture, 2)
            left, right = sorted((red[0], blue[0]))
            assert left < 0.4 and right > 0.6 and (red[0] == left) == red_is_left
            assert red[1] == pytest.approx(0.5, abs=0.02)


def test_without_cameras_the_whole_model_is_seen():
    model, data = model_and_data()
    with opengl_or_advice(), model_renderer(model, 160, 120) as draw:
        picture = draw(data)
        for colour in (0, 2):
            assert min(centre(picture, colour)) > 0.05 and max(centre(picture, colour)) < 0.95


def test_the_first_row_is_the_top_and_pictures_are_their_own():
    model, data = model_and_data(FRONT)
    with opengl_or_advice(), model_renderer(model, 160, 120) as draw:
        data.mocap_pos[0] = [1, 0, 1]
        mujoco.mj_forward(model, data)
        high = draw(data)
        data.mocap_pos[0] = [1, 0, -1]
        mujoco.mj_forward(model, data)
        low = draw(data)
        assert centre(high, 2)[1] < 0.3 and centre(low, 2)[1] > 0.7


def test_a_picture_may_be_larger_than_mujoco_s_buffer():
    model, data = model_and_data(FRONT)
    assert model.vis.global_.offwidth == 640
    with opengl_or_advice(), model_renderer(model, 1280, 720) as draw:
        assert centre(draw(data), 2)[0] > 0.6


def test_any_thread_draws_and_two_renderers_do_not_mix():
    model, data = model_and_data(FRONT + BACK)
    pictures = []

    def paint():
        with (
            opengl_or_advice(),
            model_renderer(model, 160, 120) as draw,
            model_renderer(model, 80, 60, "back") as other,
        ):
            pictures.append([draw(data), other(data), draw(data)])

    paint()
    for _ in range(2):
        thread = threading.Thread(target=paint)
        thread.start()
        thread.join()
    assert len(pictures) in (0, 3)  # 0: no OpenGL
    for first, other, again in pictures:
        np.testing.assert_array_equal(first, pictures[0][0])
        np.testing.assert_array_equal(again, first)
        assert centre(first, 0)[0] < 0.5 < centre(other, 0)[0]


def test_an_unknown_camera_is_named_with_those_there_are():
    model, _ = model_and_data(FRONT)
    with pytest.raises(KeyError, match="side.*front"), model_renderer(model, 160, 120, "side"):
        pass


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("egl", "egl"),  # without any driver
        ("off", "No module named 'mujoco.off'"),
        ("glfw", ""),  # without a screen
    ],
)
def test_a_backend_that_does_not_work_says_what_to_install(backend, reason):
    code = (
        "import os, mujoco; from rlbotics_jax.rendering import RenderingError, model_renderer\n"
        f"os.environ['MUJOCO_GL'] = {backend!r}\n"  # read when drawing begins, not when mujoco was imported
        "model = mujoco.MjModel.from_xml_string('<mujoco/>')\n"
        "try:\n    with model_renderer(model, 64, 48): print('drawn')\n"
        "except RenderingError as error: print(error)"
    )
    hidden = {"DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM"}
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env["__EGL_VENDOR_LIBRARY_FILENAMES"] = "/nowhere"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=env)
    (sentence,) = result.stdout.splitlines()
    assert sentence.startswith(f"MuJoCo cannot draw with MUJOCO_GL={backend} (") and reason.lower() in sentence.lower()
    assert sentence.endswith(
        "; install EGL (apt install libegl1 libgl1 libgl1-mesa-dri) or OSMesa (apt install libosmesa6), or choose "
        "another backend by MUJOCO_GL."
    )


def test_without_egl_osmesa_draws_or_both_are_named():
    code = (
        "import mujoco; from rlbotics_jax.rendering import RenderingError, model_renderer\n"
        "model = mujoco.MjModel.from_xml_string('<mujoco/>')\n"
        "try:\n    with model_renderer(model, 64, 48) as draw: print(draw(mujoco.MjData(model)).shape)\n"
        "except RenderingError as error: print(error)"
    )
    env = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
    env["__EGL_VENDOR_LIBRARY_FILENAMES"] = "/nowhere"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=env)
    (line,) = result.stdout.splitlines()
    assert line == "(48, 64, 3)" or ("EGL (" in line and ") or OSMesa (" in line and "apt install libosmesa6" in line)
