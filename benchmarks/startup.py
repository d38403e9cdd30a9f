"""From the command to the first iteration, as a user waits for it, beside Brax on the same task.

    python benchmarks/startup.py                    3 rounds of both tasks
    python benchmarks/startup.py --rounds 1 --tasks CartpoleBalance

`rlbotics-jax train` runs in a pipe: seconds from starting the process to the line that reports the
first iteration, once with an empty compilation cache (a fresh XDG_CACHE_HOME) and once with the cache that this left.
Brax's PPO trains the same task with the same sizes (workers/brax_ppo.py), without a compilation cache, as it comes:
seconds from starting the process to `progress_fn` after the first iteration. Brax reports through evaluations (128
episodes of the untrained policy, and again after each report's training), which compile too; it runs once with them, as
it does unless told otherwise, and once with `run_evals=False`. The four take turns, on the library's cart-pole and on
MuJoCo Playground's. All of one task run in one virtual environment (benchmarks/.venvs), which the first run builds.
Figures go to benchmarks/results/startup.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import (
    WORKERS,
    Worker,
    brax_python,
    print_table,
    ratios,
    spread,
    summary,
    verdict,
    warn_if_busy,
    worker_environment,
    write_json,
)

TASKS = {
    "CartpoleBalance": [],
    "PlaygroundCartpoleBalance": ["--env.id", "tasks:PlaygroundCartpoleBalance"],
}
"""By name, the flags of our command."""

REPORT = "ran the first iteration"
"""What the line says that reports it."""

WARM_BAR_SECONDS = 12.0
COLD_BAR = 0.5
"""Of Brax's time."""

COLD, WARM = "ours, empty cache", "ours, warm cache"
EVALUATED, BARE = "Brax", "Brax, no evaluations"


def command(python: Path) -> list[str]:
    """Returns the command of that interpreter's environment."""
    return [str(python.with_name("rlbotics-jax"))]


def environment(cache: Path) -> dict[str, str]:
    """Returns the environment variables of our runs: all caches in `cache`."""
    variables = worker_environment({"XDG_CACHE_HOME": str(cache)})
    variables["PYTHONPATH"] += os.pathsep + str(WORKERS)
    variables.pop("JAX_COMPILATION_CACHE_DIR", None)
    return variables


def first_iteration(python: Path, task: str, cache: Path, iterations: int) -> float:
    """Starts a training, waits for its first iteration and ends it; returns the seconds.

    Raises:
        SystemExit: it ended without one; with what it wrote.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["train", "CartpoleBalance", *TASKS[task], "-i", str(iterations), "--log-dir", folder]
        started = time.perf_counter()
        process = subprocess.Popen(
            [*command(python), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(cache),
            cwd=folder,
            text=True,
        )
        lines = []
        for line in process.stdout:
            lines.append(line)
            if REPORT in line:
                seconds = time.perf_counter() - started
                process.kill()
                process.wait()
                process.stdout.close()
                return seconds
        raise SystemExit(f"rlbotics-jax {' '.join(arguments)} reported no first iteration:\n{''.join(lines)}")


def first_result(python: Path, task: str, *arguments: str) -> tuple[float, dict[str, str]]:
    """Starts Brax and waits for its first training result; returns the seconds and the versions."""
    with tempfile.TemporaryDirectory() as cache:
        variables = {"XDG_CACHE_HOME": cache, "JAX_ENABLE_COMPILATION_CACHE": "false"}
        worker_arguments = ("--task", task, "--iterations", 1, *arguments)
        with Worker(python, "brax_ppo.py", *worker_arguments, variables=variables) as worker:
            return worker.ready_seconds, worker.ready["versions"]


def measure(
    python: Path, task: str, rounds: int, iterations: int, evaluated: bool
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Returns the seconds of each way to start, one a round, and the peer's versions."""
    seconds: dict[str, list[float]] = {}
    versions: dict[str, str] = {}
    for i in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            for name in (COLD, WARM):
                seconds.setdefault(name, []).append(first_iteration(python, task, Path(cache), iterations))
        for name, arguments in ((EVALUATED, ["--evaluations"]), (BARE, [])):
            if evaluated or name == BARE:
                value, versions = first_result(python, task, *arguments)
                seconds.setdefault(name, []).append(value)
        print(
            f"{task}, round {i + 1}: " + ", ".join(f"{name} {values[-1]:.1f} s" for name, values in seconds.items()),
            flush=True,
        )
    return seconds, versions


def read_files(python: Path) -> None:
    """Imports once what the runs import, so that the first of them does not wait for the disk."""
    with tempfile.TemporaryDirectory() as cache:
        variables = environment(Path(cache))
        modules = "import brax.training.agents.ppo.train, mujoco.mjx, rlbotics_jax.training"
        subprocess.run([str(python), "-c", modules], env=variables, stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    """Measures, prints the table and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-i", "--iterations", type=int, default=10, help="what our command is asked for; it is ended")
    parser.add_argument("--no-evaluations", action="store_true", help="leave out Brax with evaluations, the slow one")
    parser.add_argument("--peer-python", type=Path, help="a Python that has all of it, instead of building one")
    options = parser.parse_args()

    pythons = {task: options.peer_python or brax_python(task) for task in options.tasks}
    busy, tasks, versions = warn_if_busy(), {}, {}
    for task, python in pythons.items():
        read_files(python)
        seconds, versions = measure(python, task, options.rounds, options.iterations, not options.no_evaluations)
        tasks[task] = report(task, seconds)
    write_json("startup", {"cpus_busy_before": busy, "tasks": tasks}, versions)


def report(task: str, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Prints the table of one task and returns its figures."""
    figures: dict[str, Any] = {"seconds": {name: summary(values) for name, values in seconds.items()}, "ratios": {}}
    rows = []
    for name, values in seconds.items():
        peers = [other for other in (EVALUATED, BARE) if other in seconds and name not in (EVALUATED, BARE)]
        against = {other: ratios(values, seconds[other]) for other in peers}
        if against:
            figures["ratios"][name] = {other: summary(ratio) for other, ratio in against.items()}
        cells = [spread(against[other], ".2f") if other in against else "" for other in (EVALUATED, BARE)]
        rows.append([name, spread(values), *cells, bars(name, values, against)])
    columns = ("start", "seconds", "of Brax's", "of Brax's without evaluations", "bar")
    print_table(f"{task}: command to first iteration, median [min-max]", columns, rows)
    return figures


def bars(name: str, seconds: list[float], against: dict[str, list[float]]) -> str:
    """Returns the bar of a row, and whether it was met; the ratio's bar against Brax with and without evaluations."""
    if name == COLD:
        met = {peer: verdict(statistics.median(ratio) <= COLD_BAR) for peer, ratio in against.items()}
        return f"<= {COLD_BAR} of {', of '.join(f'{peer}: {answer}' for peer, answer in met.items())}"
    if name == WARM:
        return f"<= {WARM_BAR_SECONDS:g} s: {verdict(statistics.median(seconds) <= WARM_BAR_SECONDS)}"
    return ""


if __name__ == "__main__":
    main()
