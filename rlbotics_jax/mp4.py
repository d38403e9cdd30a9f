"""Writing an MP4 file frame by frame: it appears whole, or not at all."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from rlbotics_jax.atomic import replacing
from rlbotics_jax.extras import missing_package


@contextlib.contextmanager
def write_mp4(
    path: Path, width: int, height: int, frames_per_second: float
) -> Iterator[Callable[[UInt8[np.ndarray, "H W 3"]], None]]:
    """Yields write(frame). The video is H.264 in yuv420p, which browsers play.

    Args:
        path: where it will be; the folder is created.
        width, height: of a frame, in pixels.
        frames_per_second: kept to a fraction with a denominator of at most 1000.

    Raises:
        ImportError: the encoder is not installed.
        OSError: the file cannot be written.
        ValueError: an odd width or height, which yuv420p does not have.
    """
    for name, value in (("width", width), ("height", height)):
        if value < 2 or value % 2:
            raise ValueError(f"{name} is {value}; allowed: even numbers of 2 or more.")
    executable = _ffmpeg()
    rate = str(Fraction(frames_per_second).limit_denominator(1000))
    with replacing(path.absolute()) as partial, tempfile.TemporaryFile() as messages:
        command = [
            *(executable, "-loglevel", "error", "-nostdin", "-y"),
            *("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-framerate", rate, "-i", "pipe:0"),
            # One thread and a fast preset: the processors belong to the training that this is a picture of.
            *("-c:v", "libx264", "-preset", "veryfast", "-threads", "1", "-pix_fmt", "yuv420p"),
            *("-movflags", "+faststart", "-f", "mp4", str(partial)),
        ]
        # In a process group of its own: Ctrl-C in the terminal is meant for the training, not for the encoder.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=messages, process_group=0
        )

        def failure() -> OSError:
            code = process.wait()
            messages.seek(0)
            lines = messages.read().decode(errors="replace").splitlines()
            return OSError(f"ffmpeg could not write '{path}': {lines[0] if lines else f'exit status {code}'}.")

        def write(frame: UInt8[np.ndarray, "H W 3"]) -> None:
            try:
                process.stdin.write(frame.tobytes())
            except BrokenPipeError:
                raise failure() from None

        try:
            yield write
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            if process.wait() != 0:
                raise failure()
        except BaseException:
            process.kill()
            process.wait()
            with contextlib.suppress(OSError):  # the error to be seen is the first one
                process.stdin.close()
            raise


def _ffmpeg() -> str:
    """Returns the path of the encoder's program."""
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise missing_package("Recording a video", error, "video") from error
    return imageio_ffmpeg.get_ffmpeg_exe()
