"""Training on MJX: this library's stages and training, against Brax's PPO on the same task, batch and networks.

    python benchmarks/mjx.py                                    all tasks, about ten minutes
    python benchmarks/mjx.py --tasks CartpoleBalance --rounds 5

256 environments x 32 steps, networks [64, 64] with elu, 5 epochs of 4 mini-batches, adaptive rate, observations
normalised: the shipped CartpoleBalance.yaml. Stages and peers take turns within one run, each measurement being some
iterations in one dispatch:

    stepping     random actions through the bare vmapped step
    collection   the rollout: act, step, time limits, resets, statistics
    update       PPO's update on a finished rollout
    training     what `train` dispatches: both
    brax         Brax's training epochs, by its own clock

Two tasks: the library's cart-pole, and MuJoCo Playground's. The first run builds a virtual environment for each
(benchmarks/.venvs), where this library's workers run too, so that both use the same JAX and MuJoCo. Figures go to
benchmarks/results/mjx.json.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from harness import (
    Worker,
    brax_python,
    interleave,
    print_table,
    ratios,
    spread,
    summary,
    verdict,
    warn_if_busy,
    write_json,
)

TASKS = ("CartpoleBalance", "PlaygroundCartpoleBalance")
STAGES = ("stepping", "collection", "update", "training")
BARS = {"training / brax": 1.15, "training / stepping": 0.37}


def measure(task: str, rounds: int, iterations: int, peer: Path) -> dict[str, Any]:
    """Returns the figures of one task."""
    arguments = ("--task", task, "--iterations", iterations)
    with tempfile.TemporaryDirectory() as cache:
        variables = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        with Worker(peer, "mjx_stages.py", *arguments, variables=variables) as worker:
            cold = worker.ready["compile_seconds"]
        ours = Worker(peer, "mjx_stages.py", *arguments, variables=variables)
    with ours, Worker(peer, "brax_ppo.py", *arguments) as brax:
        brax.measure("training")  # compiles its epoch a second time
        speeds: dict[str, list[float]] = {name: [] for name in (*STAGES, "brax")}
        for _ in range(rounds):
            for name in STAGES:
                speeds[name] += interleave({name: ours}, name, 1, "env_steps_per_second")[name]
            speeds["brax"] += interleave({"brax": brax}, "training", 1, "env_steps_per_second")["brax"]
        peaks = {
            name: worker.measure("training")["peak_memory_mib"] for name, worker in (("ours", ours), ("brax", brax))
        }
        return {
            "env_steps_per_second": {name: summary(values) for name, values in speeds.items()},
            "ratios": {
                "training / brax": summary(ratios(speeds["training"], speeds["brax"])),
                "training / stepping": summary(ratios(speeds["training"], speeds["stepping"])),
            },
            "compile_seconds": {
                "cold": cold,
                "warm": ours.ready["compile_seconds"],
                "brax to first result": brax.ready["compile_seconds"],
            },
            "memory_mib": {
                "peak": peaks,
                "state": ours.ready["state_mib"],
                "temporary": ours.ready["temporary_mib"],
            },
            "versions": ours.ready["versions"] | brax.ready["versions"],
        }


def report(task: str, figures: dict[str, Any]) -> None:
    """Prints one task's tables."""
    speeds = figures["env_steps_per_second"]
    rows = [[name, spread(values["rounds"], ",.0f")] for name, values in speeds.items()]
    print_table(f"{task}: env-steps/s, median [min-max]", ("", "env-steps/s"), rows)
    rows = []
    for name, values in figures["ratios"].items():
        met = verdict(values["median"] >= BARS[name])
        rows.append([name, spread(values["rounds"], ".2f"), f"{BARS[name]} {met}"])
    print_table(f"{task}: ratios within a round", ("", "ratio", "bar"), rows)
    seconds, memory = figures["compile_seconds"], figures["memory_mib"]
    print("Compile seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in seconds.items()))
    print(f"Peak memory (MiB): ours {memory['peak']['ours']:.0f}, brax {memory['peak']['brax']:.0f}; ", end="")
    print(f"the program: state {memory['state']:.1f}, temporary {memory['temporary']:.1f}", flush=True)


def main() -> None:
    """Measures, prints the tables and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--iterations", type=int, default=20, help="training iterations' worth of one measurement")
    parser.add_argument("--peer-python", type=Path, help="a Python that has all of it, instead of building one")
    options = parser.parse_args()

    pythons = {task: options.peer_python or brax_python(task) for task in options.tasks}
    busy, tasks, versions = warn_if_busy(), {}, {}
    for task in options.tasks:
        figures = measure(task, options.rounds, options.iterations, pythons[task])
        versions |= figures.pop("versions")
        tasks[task] = figures
        report(task, figures)
    write_json("mjx", {"cpus_busy_before": busy, "tasks": tasks}, versions)


if __name__ == "__main__":
    main()
