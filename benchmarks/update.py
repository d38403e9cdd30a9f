"""The PPO update alone: this library's compiled update against RLBotics' torch update, on both the same rollout.

    python benchmarks/update.py                     64, 1024 and 4096 environments; several minutes
    python benchmarks/update.py --sizes 64 --rounds 5

Networks [512, 256, 128] with elu, 48 observations, 12 actions, 24 steps, 5 epochs of 4 mini-batches, adaptive schedule,
observations normalised. Both start every update from the same weights, statistics and rollout (workers/update_case.py)
and are measured in turns. torch uses its default threads; RLBotics comes in an environment of its own
(benchmarks/.venvs/rlbotics), which the first run builds.

What is timed is `PPO.update`: gradients, clipping, learning rate, optimizer. Ours also computes the advantages there,
and merges the observations into the statistics, which RLBotics has done before. Compiling is not in it: it has a
column of its own. Figures go to benchmarks/results/update.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from harness import (
    RLBOTICS,
    Worker,
    interleave,
    peer_python,
    print_table,
    ratios,
    spread,
    summary,
    verdict,
    warn_if_busy,
    write_json,
)

ROUNDS = {64: 30, 1024: 10, 4096: 5}
BARS = {64: 1.8, 1024: 0.95, 4096: 0.95}
"""What the ratio torch / ours is to reach."""

SAME = 0.1
"""How far the two value losses may be apart, relatively: both computed the same update, but for the permutations."""


def measure(num_envs: int, rounds: int, peer: Path) -> dict[str, Any]:
    """Returns the figures of one size."""
    cold = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    with (
        Worker(sys.executable, "update_jax.py", num_envs, variables=cold) as ours,
        Worker(peer, "update_torch.py", num_envs) as torch,
    ):
        workers = {"ours": ours, "torch": torch}
        first = {name: worker.measure("update") for name, worker in workers.items()}
        losses = {name: answer["value_loss"] for name, answer in first.items()}
        if abs(losses["ours"] / losses["torch"] - 1.0) > SAME:
            raise SystemExit(f"The two did not compute the same update: mean value losses {losses}.")
        busy = warn_if_busy()
        seconds = interleave(workers, "update", rounds)
        return {
            "seconds": {name: summary(values) for name, values in seconds.items()},
            "torch_over_ours": summary(ratios(seconds["torch"], seconds["ours"])),
            "torch_over_ours_fastest": min(seconds["torch"]) / min(seconds["ours"]),
            "compile_seconds": ours.ready["compile_seconds"],
            "threads": torch.ready["threads"],
            "value_loss": losses,
            "peak_memory_mib": {name: answer["peak_memory_mib"] for name, answer in first.items()},
            "cpus_busy_before": busy,
            "versions": ours.ready["versions"] | torch.ready["versions"],
        }


def row(num_envs: int, figures: dict[str, Any]) -> list[str]:
    """Returns the table's row of one size."""
    seconds, ratio = figures["seconds"], figures["torch_over_ours"]["rounds"]
    bar = BARS.get(num_envs)
    met = "" if bar is None else f"{bar} {verdict(figures['torch_over_ours']['median'] >= bar)}"
    return [
        f"{num_envs}",
        spread(seconds["ours"]["rounds"]),
        spread(seconds["torch"]["rounds"]),
        spread(ratio, ".2f"),
        f"{figures['torch_over_ours_fastest']:.2f}",
        met,
        f"{figures['compile_seconds']:.1f}",
        f"{figures['peak_memory_mib']['ours']:.0f}",
        f"{figures['peak_memory_mib']['torch']:.0f}",
    ]


def main() -> None:
    """Measures, prints the table and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(ROUNDS), help="numbers of environments")
    parser.add_argument("--rounds", type=int, help="updates of each program per size; more for small ones by default")
    parser.add_argument(
        "--peer-python", type=Path, help="a Python that has RLBotics and torch, instead of building one"
    )
    options = parser.parse_args()

    peer = options.peer_python or peer_python("rlbotics", RLBOTICS)
    sizes, versions = {}, {}
    for num_envs in options.sizes:
        figures = measure(num_envs, options.rounds or ROUNDS.get(num_envs, 10), peer)
        versions |= figures.pop("versions")
        sizes[str(num_envs)] = figures
        print(
            f"{num_envs} environments: torch / ours {spread(figures['torch_over_ours']['rounds'], '.2f')}", flush=True
        )
    columns = ("environments", "ours s", "torch s", "torch / ours", "of the fastest", "bar", "compile s")
    columns += ("ours MiB", "torch MiB")
    print_table("PPO update, median [min-max]", columns, [row(int(size), figures) for size, figures in sizes.items()])
    write_json("update", {"sizes": sizes}, versions)


if __name__ == "__main__":
    main()
