"""Compares programs of several virtual environments: builds those, talks to one process each, alternates them.

A machine that slows down for a minute slows whatever runs in that minute. So the compared programs stay alive side by
side, one works while the others wait, and every round measures each of them once: ratios are taken within a round.

Only the standard library is imported here: the workers' environments need not have anything else, and a worker's peak
memory starts from that of the process that started it.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
WORKERS = HERE / "workers"
ENVIRONMENTS = HERE / ".venvs"

PAUSE_SECONDS = 0.1
"""Between two measurements: thread pools spin a moment after their last work, on cores that the next one needs."""

ANSWERS = "HARNESS_ANSWERS"
"""The environment variable that tells a worker its pipe's file descriptor."""


RLBOTICS = ("telekinesis-rlbotics==0.1.3", "torch==2.13.0")
"""Requirements of RLBotics' environment."""


def brax_python(task: str) -> Path:
    """Returns the Python of the environment for a task: Brax and this library, so that both use the same JAX and
    MuJoCo, and Playground only for its own task, since the warp that it installs takes 2.5 s to import."""
    name, extra = ("playground", ["playground==0.2.0"]) if task.startswith("Playground") else ("brax", [])
    return peer_python(name, ["brax==0.14.2", "jax==0.10.2", f"-e{HERE.parent}", *extra])


class WorkerError(RuntimeError):
    """A worker ended, or could not do what it was asked; the message ends with what it wrote."""


def peer_python(name: str, requirements: Sequence[str]) -> Path:
    """Returns the Python of the virtual environment `benchmarks/.venvs/<name>`, built where it is missing.

    All requirements go into one pip command, so that they are resolved together. A stamp file holds the list and the
    Python version: where either changes, the environment is built again.

    Raises:
        SystemExit: pip failed; its own output says why.
    """
    folder = ENVIRONMENTS / name
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    wanted = "\n".join([f"# Python {platform.python_version()}", *requirements]) + "\n"
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"Building the virtual environment benchmarks/.venvs/{name}: {' '.join(requirements)}", flush=True)
    started = time.perf_counter()
    venv.EnvBuilder(clear=True, with_pip=True, symlinks=True).create(folder)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    if subprocess.run(command).returncode != 0:
        raise SystemExit(f"benchmarks/.venvs/{name} could not be built: pip failed (see above).")
    stamp.write_text(wanted)
    print(f"Built in {time.perf_counter() - started:.0f} s.", flush=True)
    return python


def worker_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment variables of a worker: this process's, with the checkout and this folder importable."""
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **(variables or {})}


class Worker:
    """A process that answers one JSON line per request; its own output goes to a log that is shown when it dies.

    Attributes:
        ready: its first answer (compile seconds, versions, ...).
        ready_seconds: from starting the process to that answer.
    """

    def __init__(
        self, python: str | Path, script: str | Path, *args: object, variables: Mapping[str, str] | None = None
    ):
        """Starts `python script args...` and waits for its first answer, so that no two workers start together.

        Args:
            python: the interpreter, such as `sys.executable` or what `peer_python` returns.
            script: a path, relative to benchmarks/workers.
            args: its command line.
            variables: environment variables to add.
        """
        self.name = Path(script).stem
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        # A pipe of its own for the answers: whatever the worker and its packages print must not come between them.
        reading, writing = os.pipe()
        self._answers = os.fdopen(reading)
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [str(python), str(WORKERS / script), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(writing,),
            env=worker_environment({ANSWERS: str(writing), **(variables or {})}),
            text=True,
        )
        os.close(writing)
        self.ready = self._answer()
        self.ready_seconds = time.perf_counter() - started

    def measure(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Asks for `what` and returns the answer. Every answer holds `peak_memory_mib`, of the process up to now."""
        try:
            self._process.stdin.write(json.dumps({"what": what, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has died; reading says so, with its log
        return self._answer()

    def close(self) -> None:
        """Ends the process; one that does not listen is killed after ten seconds."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        answer = json.loads(line) if line else {"error": f"ended with code {self._process.wait()}"}
        if "error" in answer:
            self._log.seek(0)
            log = self._log.read().decode(errors="replace").splitlines()[-40:]
            self.close()
            raise WorkerError("\n".join([f"The worker {self.name} {answer['error']}.", *log]))
        return answer


class Requests:
    """A worker's side of the protocol."""

    def __init__(self) -> None:
        self._answers = os.fdopen(int(os.environ[ANSWERS]), "w")

    def answer(self, values: Mapping[str, Any]) -> None:
        """Sends one answer."""
        print(json.dumps({**values, "peak_memory_mib": peak_memory_mib()}), file=self._answers, flush=True)

    def next(self) -> tuple[str, dict[str, Any]] | None:
        """Waits for a request and returns what is asked for and its arguments; None when there will be no more."""
        line = sys.stdin.readline()
        if not line:
            return None
        request = json.loads(line)
        return request["what"], request["arguments"]

    def refuse(self, sentence: str) -> None:
        """Answers that a request cannot be met; the harness then raises."""
        self.answer({"error": sentence})


def serve(ready: Callable[[], Mapping[str, Any]], functions: Mapping[str, Callable[..., Mapping[str, Any]]]) -> None:
    """A worker's main loop: sends what `ready()` returns, then answers requests by name until there are no more.

    `ready` prepares and compiles. A function that raises ends the worker: the traceback is in its log, which the
    harness shows.
    """
    requests = Requests()
    try:
        requests.answer(ready())
        while (request := requests.next()) is not None:
            what, arguments = request
            if what not in functions:
                requests.refuse(f"cannot measure {what!r}, only {', '.join(functions)}")
            else:
                requests.answer(functions[what](**arguments))
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        requests.refuse(f"raised {type(error).__name__}")


def interleave(
    workers: Mapping[str, Worker], what: str, rounds: int, key: str = "seconds", **arguments: Any
) -> dict[str, list[float]]:
    """Measures in the order A B C A B C ...; returns the `key` of each worker's answers, one a round."""
    figures: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name, worker in workers.items():
            time.sleep(PAUSE_SECONDS)
            figures[name].append(worker.measure(what, **arguments)[key])
    return figures


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Returns the ratio of each round."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


def spread(values: Sequence[float], form: str = ".3g") -> str:
    """Returns `median [min-max]`."""
    return f"{statistics.median(values):{form}} [{min(values):{form}}-{max(values):{form}}]"


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Returns median, min, max and all rounds, for the JSON file."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": list(values)}


def verdict(met: bool) -> str:
    """Returns how a table says whether a bar was met."""
    return "met" if met else "MISSED"


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table; the first column is text, the others are numbers."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # As Text: rich would read the brackets of a spread as its own markup.
    table = Table(title=Text(title, "bold"), title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if i else "left")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    # A table in a file or a pipe is not to be folded at 80 columns.
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


def write_json(name: str, figures: Mapping[str, Any], versions: Mapping[str, Any]) -> Path:
    """Writes `benchmarks/results/<name>.json`: the figures, and on what they were measured."""
    machine = {
        "date": datetime.date.today().isoformat(),
        "cpus": len(os.sched_getaffinity(0)),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "versions": dict(versions),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(_rounded({**machine, **figures}), indent=1) + "\n")
    print(f"Wrote benchmarks/results/{name}.json")
    return path


def installed_versions(*packages: str) -> dict[str, str]:
    """Returns the installed versions of packages, those that are there, in the calling process's environment."""
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def peak_memory_mib() -> float:
    """Returns the largest resident memory that this process has had, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def warn_if_busy(seconds: float = 1.0) -> float:
    """Returns how many CPUs other programs kept busy for the last `seconds`, and warns above a tenth; -1 where the
    system does not tell (it is no Linux).

    Taking turns keeps the order fair, not the share: of two cores of which one is taken, a program whose threads wait
    for each other loses more than half. RLBotics' torch update at 64 environments took 4 s instead of 0.25 s.
    """

    def ticks() -> tuple[int, int]:
        """All time of all CPUs, and the idle part of it."""
        counts = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(counts), counts[3] + counts[4]

    try:
        total, idle = ticks()
        time.sleep(seconds)
        total_after, idle_after = ticks()
    except OSError:
        return -1.0
    busy = os.cpu_count() * (1.0 - (idle_after - idle) / (total_after - total))
    if busy > 0.1:
        print(f"warning: other programs keep {busy:.1f} CPUs busy; these figures will not be comparable.", flush=True)
    return busy


def _rounded(value: Any) -> Any:
    """Returns the value with floats of four digits: the others are noise, and would change the file at every run."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
