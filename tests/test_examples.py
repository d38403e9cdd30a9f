"""Every example runs, as a user would start it, and prints what it promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PRINTED = {
    "custom_algorithm": "The entropy bonus went from 0.00450 to 0.00405 in 2 iterations.",
    "custom_loop": "Action in the first environment: [",
    "custom_mjx_environment": "Return of the policy: ",
    "custom_model": "Wrote residual_policy.onnx",
}


def run_example(name, *arguments):
    """Returns what an example prints when it is run in the current, empty folder."""
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_notebook_runs(tmp_path):
    """Cell by cell, as a notebook would; `python` runs the code of all cells in one namespace."""
    notebook = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    source = "\n".join(cells).replace("num_learning_iterations=120", "num_learning_iterations=3")
    assert source.count("num_learning_iterations=3") == 2
    result = subprocess.run(
        [sys.executable, "-c", source.replace("num_learning_iterations=30", "num_learning_iterations=2")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr
    assert "Policy('" in result.stdout and "deterministic return:" in result.stdout


def test_every_example_is_tested():
    assert sorted(path.stem for path in (ROOT / "examples").glob("*.py")) == sorted(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_example_runs(name, tmp_path):
    assert PRINTED[name] in run_example(name, "--iterations", "2")
    if name == "custom_mjx_environment":
        (run,) = (tmp_path / "logs" / "reach_angle").iterdir()
        assert (run / "policy.onnx").is_file()


def test_the_task_of_the_environment_example_fits_on_a_screen():
    source = (ROOT / "examples" / "custom_mjx_environment.py").read_text()
    task = source[source.index("class ReachAngle") : source.index("def main")]
    assert len(task.splitlines()) < 80
