"""Compiling: the persistent cache, and the option that keeps jaxlib's CPU compiler from computing garbage."""

from __future__ import annotations

import functools
import os
import platform
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

# jaxlib 0.10 and 0.11 on CPU fuse a product whose right-hand side is a constant with a following reduction, and return
# NaN or finite garbage: `jit(lambda x: (x @ jnp.ones((512, 512))).sum())`. Without this fusion they do not.
_SAFE = ("xla_cpu_experimental_ynn_fusion_type", "")
_UNOPTIMIZED = ("xla_backend_optimization_level", 0)


def jit(function: Callable[..., Any], *, optimize: bool = True, **arguments: Any) -> Any:
    """Returns `jax.jit(function)` with the safe compiler options; for top-level programs only (nested ones raise).

    Args:
        function: what is compiled.
        optimize: False for what runs once: it compiles in half the time, and runs slower.
        **arguments: those of `jax.jit`.
    """
    options = [_SAFE] if optimize else [_SAFE, _UNOPTIMIZED]
    return jax.jit(
        function, compiler_options={name: value for name, value in options if _is_known(name, value)}, **arguments
    )


@functools.cache
def _is_known(name: str, value: Any) -> bool:
    """Returns whether this jaxlib has the option: one that a later jaxlib has dropped would be an error."""
    try:
        jax.jit(lambda x: x + 1, compiler_options={name: value})(0)
    except Exception:
        return False
    return True


def enable_compilation_cache() -> None:
    """Keeps compiled programs on disk, so that the second run of a program starts in seconds.

    The folder is named for the jax version and the processor, so that a home directory shared by several machines is
    safe. A folder that was set before (JAX_COMPILATION_CACHE_DIR) is left alone.
    """
    if jax.config.jax_compilation_cache_dir is None:
        root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        folder = root / "rlbotics_jax" / f"jax-{jax.__version__}-{platform.machine()}-{_processor()}"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        # JAX's own bound of a second leaves out what the ONNX exporter compiles: a hundred programs, half of its time.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.02)


def _processor() -> str:
    """Returns a short name for the processor's instruction set: the flags Linux reports, hashed."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.system().lower()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{zlib.crc32(flags.encode()):08x}"
