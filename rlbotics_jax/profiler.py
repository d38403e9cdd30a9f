"""A profile of a few warm iterations, beside the run's other files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax

from rlbotics_jax.config import ConfigError


class Profiler:
    """Records one dispatch of a run into run/plugins/profile/<time>/.

    That is where TensorBoard's profile plugin (pip install tensorboard-plugin-profile) looks for it;
    perfetto_trace.json.gz beside it is for https://ui.perfetto.dev.
    """

    def __init__(self, run: Path | None):
        """Raises ConfigError where the run writes nothing."""
        if run is None:
            raise ConfigError("runner.logger", "a profile is written into the run's folder: set enabled and log_dir")
        self._run, self._recorded = run, False

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Records what the devices and XLA's threads do meanwhile."""
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # every Python call would bury what the devices do
        with jax.profiler.trace(str(self._run), create_perfetto_trace=True, profiler_options=options):
            yield
        self._recorded = True

    def summary(self) -> str:
        """Says where the profile is, or why there is none."""
        if not self._recorded:
            return "No profile: the run was too short, it takes three iterations to warm up."
        (file,) = self._run.glob("plugins/profile/*/perfetto_trace.json.gz")
        return f"Profile: {file} (https://ui.perfetto.dev), or tensorboard --logdir {self._run}"
