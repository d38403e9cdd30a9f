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
_SAFE_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}


def jit(function: Callable[..., Any], **arguments: Any) -> Any:
    """Returns `jax.jit(function)` with the safe compiler options; for top-level programs only (nested ones raise)."""
    return jax.jit(function, compiler_options=_compiler_options(), **arguments)


@functools.cache
def _compiler_options() -> dict[str, str]:
    """Returns the options that this jaxlib knows: an option that a later one has dropped would be an error."""
    try:
        jax.jit(lambda x: x + 1, compiler_options=_SAFE_OPTIONS)(0)
    except Exception:
        return {}
    return _SAFE_OPTIONS


def enable_compilation_cache() -> None:
    """Keeps compiled programs on disk, so that the second run of a program starts in seconds.

    The folder is named for the jax version and the processor, so that a home directory shared by several machines is
    safe. A folder that was set before (JAX_COMPILATION_CACHE_DIR) is left alone.
    """
    if jax.config.jax_compilation_cache_dir is None:
        root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        folder = root / "rlbotics_jax" / f"jax-{jax.__version__}-{platform.machine()}-{_processor()}"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def _processor() -> str:
    """Returns a short name for the processor's instruction set: the flags Linux reports, hashed."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.system().lower()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{zlib.crc32(flags.encode()):08x}"
