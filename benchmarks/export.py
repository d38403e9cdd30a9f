"""An exported policy at batch 1, as a robot runs it: this library's file and Policy beside RLBotics' own.

    python benchmarks/export.py                     50 rounds, half a minute
    python benchmarks/export.py --rounds 200

The network [512, 256, 128] with elu, 48 observations, 12 actions, observations normalised, actions not bounded; the
same weights and statistics in both files. RLBotics' is written by its runner (torch.onnx), in an environment of its own
(benchmarks/.venvs/rlbotics), which the first run builds. One process of that environment then holds both files, each on
one thread, and measures in turns: onnxruntime alone (`session.run`, everything prepared), and each library's
`Policy.get_action` on one float32 vector. RLBotics' Policy has no option for the threads: it is given the session with
one. Figures go to benchmarks/results/export.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import (
    RLBOTICS,
    Worker,
    peer_python,
    print_table,
    ratios,
    spread,
    summary,
    verdict,
    warn_if_busy,
    write_json,
)

PROGRAMS = {
    "ours_session": "onnxruntime, our file",
    "theirs_session": "onnxruntime, RLBotics' file",
    "ours_policy": "our Policy",
    "theirs_policy": "RLBotics' Policy",
}
SESSION_BAR = 1.1
"""What the ratio ours / RLBotics' of onnxruntime alone may reach."""

POLICY_BAR = 25.0
"""What our get_action may take, in microseconds."""

SAME = 1e-5
"""How far the two files' actions may be apart, relatively."""


def measure(rounds: int, peer: Path) -> dict[str, Any]:
    """Returns the figures."""
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder, "ours.onnx"), Path(folder, "theirs.onnx")
        with Worker(sys.executable, "export_jax.py", ours) as writer:
            versions = writer.ready["versions"]
        with Worker(peer, "export_torch.py", theirs) as writer:
            versions |= writer.ready["versions"]
        with Worker(peer, "export_latency.py", ours, theirs) as worker:
            if worker.ready["relative_difference"] > SAME:
                raise SystemExit(f"The two files' actions differ by {worker.ready['relative_difference']:.1e}.")
            busy = warn_if_busy()
            answers = [worker.measure("latency") for _ in range(rounds)]
            micros = {name: [1e6 * answer[name] for answer in answers] for name in PROGRAMS}
            return {
                "microseconds": {name: summary(values) for name, values in micros.items()},
                "session_ours_over_theirs": summary(ratios(micros["ours_session"], micros["theirs_session"])),
                "policy_ours_over_theirs": summary(ratios(micros["ours_policy"], micros["theirs_policy"])),
                "nodes": worker.ready["nodes"],
                "relative_difference": worker.ready["relative_difference"],
                "cpus_busy_before": busy,
                "versions": versions | worker.ready["versions"],
            }


def main() -> None:
    """Measures, prints the table and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50, help="of 500 calls of each program")
    parser.add_argument(
        "--peer-python", type=Path, help="a Python that has RLBotics and torch, instead of building one"
    )
    options = parser.parse_args()

    figures = measure(options.rounds, options.peer_python or peer_python("rlbotics", RLBOTICS))
    versions, micros = figures.pop("versions"), figures["microseconds"]
    ratio = figures["session_ours_over_theirs"]
    bars = {
        "ours_session": f"{SESSION_BAR} of RLBotics' {verdict(ratio['median'] <= SESSION_BAR)}",
        "ours_policy": f"{POLICY_BAR:g} {verdict(micros['ours_policy']['median'] <= POLICY_BAR)}",
    }
    rows = [(title, spread(micros[name]["rounds"], ".1f"), bars.get(name, "")) for name, title in PROGRAMS.items()]
    print_table("An action at batch 1, µs, median [min-max]", ("program", "µs", "bar"), rows)
    print(f"onnxruntime, ours / RLBotics': {spread(ratio['rounds'], '.3f')}")
    print(f"get_action, ours / RLBotics': {spread(figures['policy_ours_over_theirs']['rounds'], '.3f')}")
    for name, nodes in figures["nodes"].items():
        print(f"{name}: {len(nodes)} nodes: {' '.join(nodes)}")
    write_json("export", figures, versions)


if __name__ == "__main__":
    main()
