"""What logging and saving cost a training run, and whether its memory grows.

    python benchmarks/runs.py                   15 rounds of 250 iterations, then one run of 2,000
    python benchmarks/runs.py --rounds 1 --iterations 100 --long 300

One process trains CartpoleBalance again and again: silently, with TensorBoard and metrics.jsonl of every iteration, and
with a checkpoint every ten iterations on top. The three take turns; compared is the median iteration after the first
50. Logging is compared with silence, saving with logging: within each round, and the fastest round of the one with the
fastest of the other, which a busy neighbour disturbs less. Then resident memory is read after 200 iterations and at the
end of a long run that logs and saves. Figures go to benchmarks/results/runs.json.
"""

from __future__ import annotations

import argparse
import sys

from harness import Worker, print_table, ratios, spread, summary, verdict, warn_if_busy, write_json

COST_BAR = 0.02
"""Of the throughput, for either."""

MEMORY_BAR = 1.02
"""Resident memory at the end, of that after 200 iterations."""

KINDS = ("silent", "logging", "saving")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="CartpoleBalance")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--iterations", type=int, default=250, help="of one run")
    parser.add_argument("--long", type=int, default=2000, help="iterations of the run whose memory is read")
    arguments = parser.parse_args()

    busy = warn_if_busy()
    with Worker(sys.executable, "whole_run.py", "--task", arguments.task) as worker:
        seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(arguments.rounds):
            for kind, values in seconds.items():
                values.append(worker.measure("run", kind=kind, iterations=arguments.iterations)["seconds"])
        early = min(200, arguments.long // 2)
        first, last = worker.measure("memory", iterations=[early, arguments.long])["resident_mib"]
        versions = worker.ready["versions"]

    costs = {}
    for what, kind, base in (
        ("logging every iteration", "logging", "silent"),
        ("saving every 10 iterations", "saving", "logging"),
    ):
        within = summary([ratio - 1 for ratio in ratios(seconds[kind], seconds[base])])
        costs[what] = {"within a round": within, "fastest": min(seconds[kind]) / min(seconds[base]) - 1}
    print_table(
        f"{arguments.task}: {arguments.rounds} rounds",
        ["more time for", "within a round, median [min-max]", "fastest rounds", "at most", ""],
        [
            (
                what,
                spread(cost["within a round"]["rounds"], ".1%"),
                f"{cost['fastest']:.1%}",
                f"{COST_BAR:.0%}",
                verdict(max(cost["within a round"]["median"], cost["fastest"]) <= COST_BAR),
            )
            for what, cost in costs.items()
        ],
    )
    growth = last / first
    print(
        f"Memory at iteration {arguments.long} / {early}: {last:.0f} / {first:.0f} MiB = {growth:.3f} "
        f"(at most {MEMORY_BAR}: {verdict(growth <= MEMORY_BAR)})"
    )
    figures = {
        "task": arguments.task,
        "iterations": arguments.iterations,
        "busy_cpus": busy,
        "seconds": {kind: summary(values) for kind, values in seconds.items()},
        "cost": costs,
        "resident_mib": {str(early): first, str(arguments.long): last},
    }
    write_json("runs", figures, versions)


if __name__ == "__main__":
    main()
