"""What importing costs, and what the wheel holds and can do in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOREIGN = ("torch", "gymnasium", "mujoco", "onnx", "onnxruntime", "jax2onnx")


def import_in_subprocess(statement, unwanted):
    """Return the seconds of an import in a new interpreter and those of the `unwanted` modules that it brought."""
    code = (
        f"import sys, time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start);"
        f"print(*[name for name in {unwanted!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    seconds, found = result.stdout.splitlines()
    return float(seconds), found.split()


def test_import_of_the_library_is_fast_and_brings_no_other_framework():
    runs = [import_in_subprocess("import rlbotics_jax", FOREIGN) for _ in range(3)]
    assert min(seconds for seconds, _ in runs) < 1.5
    assert runs[0][1] == []


def test_public_names_bring_no_other_framework_either():
    statement = "import rlbotics_jax; [getattr(rlbotics_jax, name) for name in rlbotics_jax.__all__]"
    assert import_in_subprocess(statement, FOREIGN)[1] == []


def test_import_of_the_config_brings_no_jax():
    assert import_in_subprocess("import rlbotics_jax.config", ("jax", "jaxlib", "flax", *FOREIGN))[1] == []


def test_import_of_a_policy_brings_no_jax_and_none_of_the_library():
    unwanted = ("jax", "jaxlib", "flax", "rlbotics_jax", *FOREIGN)
    assert import_in_subprocess("from bridges.policy import Policy", unwanted)[1] == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel with the build backend itself: no isolated environment, and so no network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    (path,) = folder.glob("rlbotics_jax-*.whl")
    return path


def test_wheel_holds_the_two_packages_and_the_configs(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        assert "rlbotics-jax = rlbotics_jax.cli:run_console_script" in archive.read(entry_points).decode()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"rlbotics_jax", "bridges"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    shipped = {name.removeprefix("rlbotics_jax/configs/") for name in names if name.startswith("rlbotics_jax/configs/")}
    assert shipped == {path.relative_to(ROOT / "configs").as_posix() for path in (ROOT / "configs").rglob("*.yaml")}
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in ("rlbotics_jax", "bridges")
        for path in (ROOT / package).rglob("*.py")
    }
    assert sources <= set(names)


def test_extras_and_the_version_the_library_reports():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {"onnx", "plot", "video", "wandb", "cuda12", "cuda13", "gym", "mjlab", "isaaclab", "playground", "test"}
    assert extras <= set(project["optional-dependencies"])
    code = "import rlbotics_jax; print(rlbotics_jax.__version__)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() in (project["version"], "0.0.0")  # 0.0.0: a checkout that was never installed


@pytest.fixture
def installed(wheel, tmp_path):
    """Install the wheel alone into a folder; return a function that runs its command in an empty folder."""
    target, empty = tmp_path / "target", tmp_path / "empty"
    empty.mkdir()
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True)

    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(target)}
        return subprocess.run(
            [sys.executable, *arguments], cwd=empty, env=environment, capture_output=True, text=True, timeout=280
        )

    run.command, run.target, run.empty = str(target / "bin" / "rlbotics-jax"), target, empty
    return run


def test_installed_wheel_works_in_an_empty_folder(installed):
    where = installed("-c", "import bridges, rlbotics_jax; print(bridges.__file__, rlbotics_jax.__file__)")
    assert all(path.startswith(str(installed.target)) for path in where.stdout.split()), where

    listing = installed(installed.command, "list")
    assert listing.returncode == 0 and "mjx/CartpoleBalance" in listing.stdout.split(), listing

    inspection = installed(installed.command, "inspect", "CartpoleBalance")
    assert inspection.returncode == 0, inspection
    for line in ("group           observation: 5 values", "actions         1", "bounds          [-1, 1]"):
        assert line in inspection.stdout.splitlines()
    assert not list(installed.empty.iterdir())


def test_installed_wheel_trains_and_leaves_a_policy(installed):
    training = installed(installed.command, "train", "CartpoleBalance", "-i", "2", "-n", "16")
    assert training.returncode == 0, training
    (path,) = installed.empty.rglob("policy.onnx")
    code = (
        "import sys; from bridges.policy import Policy; policy = Policy(sys.argv[1]);"
        "print(policy.get_action([0.0] * policy.obs_dim).shape, 'jax' in sys.modules)"
    )
    assert installed("-c", code, str(path)).stdout.strip() == "(1,) False"


def test_train_is_a_function_whatever_was_imported_before():
    statement = "import rlbotics_jax.training; from rlbotics_jax import TrainResult, train; assert callable(train)"
    assert import_in_subprocess(statement, FOREIGN)[1] == []
