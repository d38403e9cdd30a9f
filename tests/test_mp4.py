"""MP4 files: what is read back is what was written, and nothing is left of what failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from drawing import read_video

from rlbotics_jax.mp4 import write_mp4

ROOT = Path(__file__).parents[1]
COLOURS = np.uint8([[200, 40, 40], [40, 200, 40], [40, 40, 200], [220, 220, 220], [30, 30, 30]])


def write(path, colours=COLOURS, size=(64, 48), rate=25.0):
    with write_mp4(path, *size, rate) as frame:
        for colour in colours:
            frame(np.broadcast_to(colour, (size[1], size[0], 3)))


@pytest.mark.parametrize(("size", "rate"), [((64, 48), 25.0), ((66, 50), 200 / 7), ((320, 240), 0.5)])
def test_frames_size_and_rate_are_read_back(tmp_path, size, rate):
    write(tmp_path / "new" / "video.mp4", size=size, rate=rate)
    frames, facts = read_video(tmp_path / "new" / "video.mp4")
    assert frames.shape == (5, size[1], size[0], 3)
    np.testing.assert_allclose(frames.mean(axis=(1, 2)), COLOURS, atol=8)  # chroma is lossy
    assert facts["fps"] == pytest.approx(rate, abs=0.01) and facts["duration"] == pytest.approx(5 / rate, abs=0.02)
    assert facts["codec"] == "h264" and facts["pix_fmt"].startswith("yuv420p")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["video.mp4"]


def test_the_first_row_is_the_top(tmp_path):
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:16] = 255
    with write_mp4(tmp_path / "video.mp4", 64, 48, 10.0) as frame:
        frame(picture)
        frame(picture[::-1][::-1])  # a view without contiguous memory
    frames, _ = read_video(tmp_path / "video.mp4")
    assert frames[:, :14].min() > 240 and frames[:, 18:].max() < 15


@pytest.mark.parametrize(
    ("size", "message"), [((63, 48), "width is 63"), ((64, 47), "height is 47"), ((0, 48), "width is 0")]
)
def test_odd_sizes_are_refused(tmp_path, size, message):
    with (
        pytest.raises(ValueError, match=f"{message}; allowed: even numbers of 2 or more."),
        write_mp4(tmp_path / "a.mp4", *size, 10.0),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_error_keeps_the_old_video_and_leaves_nothing_of_the_new_one(tmp_path):
    path = tmp_path / "video.mp4"
    write(path)
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError), write_mp4(path, 64, 48, 10.0) as frame:
        frame(np.zeros((48, 64, 3), np.uint8))
        assert len(list(tmp_path.iterdir())) <= 2
        raise ZeroDivisionError
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_path_that_cannot_be_written_is_an_os_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        write(tmp_path / "file" / "video.mp4")
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(OSError, match="folder.mp4"):
        write(tmp_path / "folder.mp4")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.mp4"]


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_a_full_disk_is_an_os_error_and_leaves_nothing(tmp_path):
    code = (
        "import resource, numpy as np; from pathlib import Path; from rlbotics_jax.mp4 import write_mp4\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "noise = np.random.default_rng(0)\n"
        "try:\n"
        f"    with write_mp4(Path({str(tmp_path / 'video.mp4')!r}), 320, 240, 25.0) as frame:\n"
        "        for _ in range(100): frame(noise.integers(0, 256, (240, 320, 3), np.uint8))\n"
        "except OSError as error: print(error)"
    )
    output = run(code)
    assert output.startswith(f"ffmpeg could not write '{tmp_path / 'video.mp4'}': ") and output.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_missing_encoder_names_the_pip_command(tmp_path):
    code = (
        "import sys; sys.modules['imageio_ffmpeg'] = None\n"
        "from pathlib import Path; from rlbotics_jax.mp4 import write_mp4\n"
        "try:\n"
        f"    with write_mp4(Path({str(tmp_path / 'a' / 'video.mp4')!r}), 64, 48, 25.0): pass\n"
        "except ImportError as error: print(error)"
    )
    assert run(code).strip() == (
        "Recording a video needs the package 'imageio_ffmpeg'; install it with: pip install 'rlbotics-jax[video]'"
    )
    assert list(tmp_path.iterdir()) == []
