"""Videos: which steps are shown and how fast, what a run records in the background, and a cart-pole that is seen."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawing import Painter, constant_policy, opengl_or_advice, read_video, steps_shown
from toys import ConstantReward, TimeLimitOnly

from rlbotics_jax import video
from rlbotics_jax.envs import vectorize
from rlbotics_jax.envs.cartpole import CartpoleBalance
from rlbotics_jax.evaluation import evaluate
from rlbotics_jax.rendering import RenderingError
from rlbotics_jax.video import RecordingCancelled, VideoRecorder, record_episode

SMALL = {"width": 64, "height": 48}


def record(environment, path, **arguments):
    return record_episode(constant_policy(environment), environment, path, **{**SMALL, **arguments})


@pytest.mark.parametrize(
    ("dt", "steps", "rate"),
    [
        (0.1, 1, 10.0),
        (0.01, 4, 25.0),
        (0.02, 2, 25.0),
        (1 / 30, 1, 30.0),
        (1 / 60, 2, 30.0),
        (0.033, 2, 15.15),  # a step a frame would be 30.3 a second
        (0.005, 7, 28.57),
        (0.0001, 334, 29.94),
        (2.0, 1, 0.5),
    ],
)
def test_at_most_30_frames_a_second_in_real_time(dt, steps, rate):
    assert video._steps_per_frame(dt) == steps
    assert 1 / (steps * dt) == pytest.approx(rate, abs=0.01)


def test_every_step_is_shown_where_steps_are_slow(tmp_path):
    recording = record(Painter(episode_length=12), tmp_path / "a.mp4")
    assert recording == (tmp_path / "a.mp4", 12.0, 12)
    frames, facts = read_video(tmp_path / "a.mp4")
    assert steps_shown(frames) == list(range(12))
    assert frames.shape == (12, 48, 64, 3) and facts["fps"] == 10.0


def test_every_fourth_step_is_shown_of_a_hundred_a_second_across_chunks(tmp_path):
    environment = Painter(episode_length=130, dt=0.01)  # 25 frames a chunk: the second one ends early
    assert record(environment, tmp_path / "a.mp4").length == 130
    frames, facts = read_video(tmp_path / "a.mp4")
    assert steps_shown(frames) == [min(step, 40) for step in range(0, 130, 4)]
    assert facts["fps"] == 25.0 and facts["duration"] == pytest.approx(1.32, abs=0.01)


class Uneven(Painter):
    """Terminal after 3 steps or after 6, which only the first state tells."""

    def outcome(self, time, goal, action):
        return goal, time + 1 >= jnp.where(goal > 0, 3, 6)


def test_the_episode_is_the_one_that_evaluation_runs(tmp_path):
    environment, lengths = Uneven(), set()
    for seed in range(4):
        recording = record(environment, tmp_path / "a.mp4", seed=seed)
        results = evaluate(constant_policy(environment), environment, 1, seed)
        assert (recording.episode_return, recording.length) == (results["returns"][0], results["lengths"][0])
        assert len(read_video(tmp_path / "a.mp4")[0]) == recording.length
        lengths.add(recording.length)
    assert lengths == {3, 6}


def test_the_second_video_compiles_nothing(tmp_path):
    environment = Painter(episode_length=9)
    record(environment, tmp_path / "a.mp4")
    misses = video._programs.cache_info().misses
    record(Painter(episode_length=9), tmp_path / "b.mp4", seed=5)
    reset, run = video._programs(constant_policy(environment).algorithm, vectorize(environment, 1), 1)
    assert video._programs.cache_info().misses == misses
    assert reset._cache_size() == run._cache_size() == 1


@dataclasses.dataclass(frozen=True)
class Heavy(Painter):
    """Each state holds 20 MiB."""

    def state(self, time, goal, reward, terminated):
        state = super().state(time, goal, reward, terminated)
        return state.replace(data=(*state.data, jnp.full((5 * 2**20,), time, jnp.float32)))

    def step(self, state, action):
        return super().step(state.replace(data=state.data[:2]), action)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (Painter(episode_length=23), [10, 10, 3]),  # a second
        (Painter(episode_length=210, dt=0.01), [25, 25, 3]),
        (Painter(episode_length=2, dt=60.0), [1, 1]),
        (Heavy(episode_length=7), [3, 3, 1]),  # 64 MiB
    ],
)
def test_no_more_than_a_second_and_64_mib_of_states_are_held(environment, expected):
    every = video._steps_per_frame(environment.dt)
    chunks = video._episode(constant_policy(environment), vectorize(environment, 1), every, 0)
    assert [sum(1 for _ in states) for states, _ in chunks] == expected


def test_an_environment_that_cannot_be_drawn_says_so(tmp_path):
    with pytest.raises(
        RenderingError, match=r"^TimeLimitOnly has no member `renderer\(width, height\)`, which a video needs"
    ):
        record(TimeLimitOnly(), tmp_path / "a" / "a.mp4")
    assert list(tmp_path.iterdir()) == []


class Wrong(Painter):
    @contextlib.contextmanager
    def renderer(self, width, height):
        yield lambda state: np.zeros((width, height, 3), np.float32)


def test_a_picture_of_another_kind_is_refused_and_leaves_no_file(tmp_path):
    sentence = r"^Wrong.renderer drew float32 \(64, 48, 3\); required: uint8 \(48, 64, 3\).$"
    with pytest.raises(ValueError, match=sentence):
        record(Wrong(), tmp_path / "a.mp4")
    assert list(tmp_path.iterdir()) == []


def test_a_cancelled_recording_leaves_no_file(tmp_path):
    with pytest.raises(RecordingCancelled):
        record(Painter(), tmp_path / "a.mp4", cancelled=lambda: True)
    assert list(tmp_path.iterdir()) == []


@dataclasses.dataclass(frozen=True)
class Watched(Painter):
    """Tells of its drawing, and waits for `go`."""

    threads = []  # noqa: RUF012 - shared on purpose
    devices = []  # noqa: RUF012
    go = threading.Event()

    @contextlib.contextmanager
    def renderer(self, width, height):
        self.threads.append(threading.current_thread())
        self.devices.append(jax.config.jax_default_device)
        assert self.go.wait(60)
        with super().renderer(width, height) as draw:
            yield draw


@pytest.fixture
def watched():
    for told in (Watched.threads, Watched.devices):
        told.clear()
    Watched.go.set()
    yield Watched(episode_length=5)
    Watched.go.set()


def test_a_run_s_videos_are_recorded_one_at_a_time_in_the_background(tmp_path, watched):
    policy, recorder = constant_policy(watched), VideoRecorder(tmp_path / "videos", watched, seed=3)
    with jax.default_device(jax.devices()[3]):
        for iteration in (50, 100, 1_000_000):
            recorder.record(policy, iteration)
        recorder.close()
    names = ["iteration_000050.mp4", "iteration_000100.mp4", "iteration_1000000.mp4"]
    assert sorted(path.name for path in (tmp_path / "videos").iterdir()) == sorted(names)
    for name in names:
        frames, facts = read_video(tmp_path / "videos" / name)
        assert steps_shown(frames) == list(range(5)) and facts["size"] == (320, 240)
    assert threading.main_thread() not in Watched.threads and not any(thread.is_alive() for thread in Watched.threads)
    assert Watched.devices == [jax.devices()[3]] * 3


def test_recording_does_not_wait_and_the_next_one_does(tmp_path, watched):
    policy, recorder = constant_policy(watched), VideoRecorder(tmp_path, watched)
    Watched.go.clear()
    recorder.record(policy, 1)  # returns, though nothing is drawn yet
    assert list(tmp_path.iterdir()) == []
    threading.Timer(0.2, Watched.go.set).start()
    recorder.record(policy, 2)
    assert (tmp_path / "iteration_000001.mp4").exists()
    recorder.close()
    assert (tmp_path / "iteration_000002.mp4").exists()


def test_a_run_that_is_stopping_gives_the_video_up_and_begins_none(tmp_path, watched):
    stopping = threading.Event()
    recorder = VideoRecorder(tmp_path, watched, is_stopping=stopping.is_set)
    Watched.go.clear()
    recorder.record(constant_policy(watched), 1)
    stopping.set()
    threading.Timer(0.2, Watched.go.set).start()
    recorder.record(constant_policy(watched), 2)
    recorder.close()
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_waiting_gives_the_video_up(tmp_path, watched):
    def interrupt(number, frame):
        raise KeyboardInterrupt

    recorder = VideoRecorder(tmp_path, watched)
    Watched.go.clear()
    recorder.record(constant_policy(watched), 1)
    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            recorder.close()
    finally:
        signal.signal(signal.SIGALRM, previous)
    Watched.go.set()
    recorder.close()
    assert list(tmp_path.iterdir()) == []


def test_a_failure_warns_once_and_ends_the_recording(tmp_path):
    environment = Wrong()
    recorder = VideoRecorder(tmp_path, environment)
    policy = constant_policy(environment)
    recorder.record(policy, 50)
    sentence = (
        r"^The video of iteration 50 failed \(ValueError: Wrong.renderer drew float32 \(320, 240, 3\); required: uint8 "
        r"\(240, 320, 3\)\); training goes on without videos.$"
    )
    with pytest.warns(UserWarning, match=sentence) as caught:
        recorder.record(policy, 100)
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorder.record(policy, 150)
        recorder.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("environment", [ConstantReward(), Painter()])
def test_the_last_failure_is_told_at_the_end(tmp_path, environment):
    (tmp_path / "file").touch()
    recorder = VideoRecorder(tmp_path / "file", environment)
    recorder.record(constant_policy(environment), 50)
    with pytest.warns(UserWarning, match="RenderingError: ConstantReward has no|FileExistsError: .*file") as caught:
        recorder.close()
    assert len(caught) == 1


def test_the_cart_pole_is_seen_and_moves_as_it_does(tmp_path):
    environment, path = CartpoleBalance(), tmp_path / "cartpole.mp4"
    policy = constant_policy(environment, action=0.3)  # pushes the cart away until the pole has fallen over
    with opengl_or_advice():
        recording = record_episode(policy, environment, path)
        frames, facts = read_video(path)
        assert facts["fps"] == 25.0 and facts["size"] == (640, 480)
        chunks = video._episode(policy, vectorize(environment, 1), 4, 0)
        position, angle = np.stack([state.data.qpos for states, _ in chunks for state in states]).T
        assert len(frames) == len(position) == -(-recording.length // 4) and 20 < recording.length < 1000

        red, green, blue = np.moveaxis(frames.astype(int), -1, 0)
        cart, pole = centres((blue > red + 60) & (blue > green + 30)), centres((red > blue + 60) & (red > green + 20))
        pixels_a_metre = 240 / (5.2 * np.tan(np.pi / 8))  # half the height, at the camera's distance
        np.testing.assert_allclose(cart[:, 0], 320 + pixels_a_metre * position, atol=3)
        np.testing.assert_allclose(pole[:, 0] - cart[:, 0], pixels_a_metre * 0.5 * np.sin(angle), atol=6)
        assert (cart[:, 1] - pole[:, 1]).min() > 25 and np.ptp(cart[:, 0]) > 10 and np.abs(angle).max() > 0.4
        assert frames[:, 0].min() > 150, "the sky is light"


def centres(masks):
    """Returns the centre (column, row) of each mask's pixels."""
    assert masks.sum(axis=(1, 2)).min() > 100, "not seen"
    return np.stack([np.argwhere(mask).mean(axis=0)[::-1] for mask in masks])


def test_importing_it_brings_neither_mujoco_nor_the_encoder():
    code = "import sys, rlbotics_jax.video; print([m for m in ('mujoco', 'OpenGL', 'imageio', 'imageio_ffmpeg') if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )
    assert result.stdout.strip() == "[]"
