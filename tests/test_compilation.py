"""Compiling: the CPU compiler's fault is ruled out, and the cache has a folder of its own."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlbotics_jax.compilation import jit

FAULTY = {
    "product and sum": (lambda x: (x @ jnp.ones((512, 512))).sum(), lambda x: (x @ np.ones((512, 512))).sum()),
    "bias and sum": (
        lambda x: (x @ jnp.ones((512, 512)) + jnp.full((1, 512), 2.0)).sum(),
        lambda x: (x @ np.ones((512, 512)) + 2.0).sum(),
    ),
    "mean square": (
        lambda x: jnp.mean((x @ jnp.ones((512, 512))) ** 2),
        lambda x: np.mean((x @ np.ones((512, 512))) ** 2),
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_products_with_constants_are_right(name):
    program, reference = FAULTY[name]
    x = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32) + 1.0
    np.testing.assert_allclose(jit(program)(x), reference(x.astype(np.float64)), rtol=1e-4)


@pytest.mark.parametrize("given", [None, "mine"])
def test_cache_folder(given, tmp_path):
    """In a fresh process: named for the jax version; one that the user chose is left alone."""
    code = (
        "import jax; from rlbotics_jax.compilation import enable_compilation_cache; enable_compilation_cache(); "
        "print(jax.config.jax_compilation_cache_dir)"
    )
    environment = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)}
    if given:
        environment["JAX_COMPILATION_CACHE_DIR"] = given
    output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    folder = output.stdout.strip()
    assert folder == given if given else folder.startswith(f"{tmp_path}/rlbotics_jax/jax-{jax.__version__}-")
