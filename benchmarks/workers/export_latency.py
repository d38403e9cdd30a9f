"""Worker: both exported files in one process, through onnxruntime alone and through each library's Policy."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from harness import installed_versions, serve
from telekinesis.rlbotics.policy import Policy as TheirPolicy
from update_case import OBSERVATIONS

from bridges.policy import Policy

CALLS, WARM_UP = 500, 50


class Latency:
    """The programs to compare, each a function without arguments."""

    def __init__(self, ours: Path, theirs: Path):
        self.files = {"ours": ours, "theirs": theirs}
        self.programs: dict[str, Callable[[], Any]] = {}

    def ready(self) -> dict[str, Any]:
        """Loads both files on one thread; answers how far their actions are apart, and the graphs' nodes."""
        observation = np.random.default_rng(0).standard_normal(OBSERVATIONS, np.float32)
        sessions = {name: one_thread(path) for name, path in self.files.items()}
        policy, their_policy = Policy(self.files["ours"]), TheirPolicy(self.files["theirs"])
        their_policy.session = sessions["theirs"]  # its own has a thread for each core, which spins between the calls
        self.programs = {f"{name}_session": session_run(session, observation) for name, session in sessions.items()}
        self.programs["ours_policy"] = lambda: policy.get_action(observation)
        self.programs["theirs_policy"] = lambda: their_policy.get_action(observation)
        action, their_action = policy.get_action(observation), their_policy.get_action(observation)
        return {
            "relative_difference": float(np.abs(action - their_action).max() / np.abs(their_action).max()),
            "nodes": {name: [node.op_type for node in onnx.load(path).graph.node] for name, path in self.files.items()},
            "versions": installed_versions("onnxruntime", "numpy"),
        }

    def measure(self) -> dict[str, float]:
        """Returns each program's seconds per call, one after the other."""
        return {name: seconds_per_call(program) for name, program in self.programs.items()}


def one_thread(path: Path) -> onnxruntime.InferenceSession:
    """Returns a session as our Policy opens it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), sess_options=options, providers=["CPUExecutionProvider"])


def session_run(session: onnxruntime.InferenceSession, observation: np.ndarray) -> Callable[[], Any]:
    """Returns a function that runs the session with everything prepared."""
    names, feed = [session.get_outputs()[0].name], {session.get_inputs()[0].name: observation[None]}
    return lambda: session.run(names, feed)


def seconds_per_call(program: Callable[[], Any]) -> float:
    """Returns the mean of 500 calls, after 50 that bring its code and weights back into the caches."""
    for _ in range(WARM_UP):
        program()
    started = time.perf_counter()
    for _ in range(CALLS):
        program()
    return (time.perf_counter() - started) / CALLS


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ours", type=Path)
    parser.add_argument("theirs", type=Path)
    options = parser.parse_args()
    latency = Latency(options.ours, options.theirs)
    serve(latency.ready, {"latency": latency.measure})
