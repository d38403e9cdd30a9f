"""The command line: train, export, play, list, inspect. Help and bad input are answered without importing jax."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from rlbotics_jax.config import Config
    from rlbotics_jax.envs import EnvironmentSpec

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

# Of the operating system's errors, those that another path or another flag mends.
_PATH_ERRORS = (FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError, IsADirectoryError)


def _argument(help: str, metavar: str | None = None, *aliases: str) -> Any:
    return tyro.conf.arg(help=help, metavar=metavar, aliases=aliases or None, help_behavior_hint="")


_Config = Annotated[
    str, tyro.conf.Positional, _argument("a YAML file, a run's config.json, or a name that `list` prints", "CONFIG")
]
_Run = Annotated[str, tyro.conf.Positional, _argument("the folder of a run", "RUN")]


# Numbers that the config holds are strings here: the config reads every spelling of a number and knows what is allowed.
@dataclass(frozen=True)
class Train:
    """Train a policy and export it to ONNX."""

    config: _Config
    num_envs: Annotated[str | None, _argument("number of environments (env.num_envs)", "N", "-n")] = None
    device: Annotated[str | None, _argument("auto, cpu, gpu, cuda or cuda:N (env.device)", "NAME", "-d")] = None
    num_learning_iterations: Annotated[
        str | None,
        _argument(
            "iterations; with --resume, this many more (runner.num_learning_iterations)", "N", "-i", "--iterations"
        ),
    ] = None
    log_dir: Annotated[str | None, _argument("where runs are written (runner.logger.log_dir)", "DIR")] = None
    seed: Annotated[str | None, _argument("random seed (runner.seed)", "S")] = None
    resume: Annotated[
        str | None,
        _argument("continue `last`, `best`, the name of a run or a path; alone it means last", "CHECKPOINT"),
    ] = None
    no_cache: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, _argument("compile afresh instead of using the cache on disk")
    ] = False

    def run(self) -> int:
        config = self.configure()
        from rlbotics_jax.train import train

        result = train(config, compilation_cache=not self.no_cache)
        if result.run_directory is not None:
            policy = result.run_directory / "policy.onnx"
            print(f"Run: {result.run_directory}")
            if policy.is_file():
                print(f"Policy: {policy}")
        return INTERRUPTED if result.interrupted else OK

    def configure(self) -> Config:
        """Return the file's config with the flags in place of its values, validated as a whole."""
        from rlbotics_jax.config import from_dict, load_config

        values = load_config(self.config).to_dict()
        overrides = [
            (values["env"], "num_envs", self.num_envs),
            (values["env"], "device", self.device),
            (values["runner"], "num_learning_iterations", self.num_learning_iterations),
            (values["runner"], "seed", self.seed),
            (values["runner"]["logger"], "log_dir", self.log_dir),
            (values["runner"]["logger"], "resume", self.resume),
        ]
        for section, key, value in overrides:
            if value is not None:
                section[key] = value
        return from_dict(values)


@dataclass(frozen=True)
class Export:
    """Write a run's policy as one ONNX file."""

    run_folder: Annotated[_Run, tyro.conf.arg(name="run")]
    output: Annotated[Path | None, _argument("the file to write; policy.onnx in the run by default", "PATH")] = None
    which: Annotated[
        Literal["auto", "best", "last"],
        _argument("which policy; auto is the best, where there is one", "auto|best|last"),
    ] = "auto"

    def run(self) -> int:
        from rlbotics_jax.runs import export

        which = None if self.which == "auto" else self.which
        print(f"Policy: {export(self.run_folder, output=self.output, which=which)}")
        return OK


@dataclass(frozen=True)
class Play:
    """Run a run's policy, deterministically, and print its returns."""

    run_folder: Annotated[_Run, tyro.conf.arg(name="run")]
    episodes: Annotated[int, _argument("number of episodes; 20 by default", "N")] = 20

    def run(self) -> int:
        if self.episodes < 1:
            raise ValueError(f"--episodes must be at least 1, not {self.episodes}.")
        from rlbotics_jax.evaluation import evaluate_run

        results = evaluate_run(self.run_folder, num_episodes=self.episodes)
        for name in ("returns", "lengths"):
            values = results[name]
            print(
                f"{name:8} mean {values.mean():.1f}  std {values.std():.1f}  "
                f"min {values.min():.1f}  max {values.max():.1f}  ({len(values)} episodes)"
            )
        return OK


@dataclass(frozen=True)
class List:
    """Print the names of the configurations that ship with the library."""

    def run(self) -> int:
        from rlbotics_jax.config import shipped_configs

        print("\n".join(shipped_configs()))
        return OK


@dataclass(frozen=True)
class Inspect:
    """Print what a configuration's environment observes, takes and declares."""

    config: _Config

    def run(self) -> int:
        from rlbotics_jax.config import find_config, load_config

        config = load_config(self.config)
        from rlbotics_jax.envs import environment_spec, make_environment

        spec = environment_spec(make_environment(config.env))
        print(f"config          {find_config(self.config)}")
        print("\n".join(describe(config, spec)))
        return OK


COMMANDS = {"train": Train, "export": Export, "play": Play, "list": List, "inspect": Inspect}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 it worked; 1 it failed while running; 2 bad input, told in one sentence on stderr; 130 interrupted (a training
    run saves its state first). An error that this library did not raise on purpose keeps its traceback.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # A console script has its own folder on the path, not the user's, whose modules a config may name.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    command = _parse(arguments)
    if isinstance(command, int):
        return command
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return command.run()
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except OSError as error:
        return _fail(_sentence(error), BAD_INPUT if isinstance(error, _PATH_ERRORS) else FAILED)
    except (ValueError, ImportError, RuntimeError) as error:
        if not _raised_here(error):
            raise
        return _fail(_sentence(error), FAILED if isinstance(error, RuntimeError) else BAD_INPUT)


def describe(config: Config, spec: EnvironmentSpec) -> list[str]:
    """Return the lines of `inspect`: observation groups and sets, actions with their bounds, timing.

    Raises:
        ValueError: an observation set names a group that the environment does not have.
    """
    sizes = spec.observation_sizes
    lines = [f"environment     {config.env.framework} {config.env.id}, {config.env.num_envs} environments"]
    lines += [f"group           {group}: {size} values" for group, size in sizes.items()]
    for name, groups in config.runner.obs_groups.items():
        for group in groups:
            if group not in sizes:
                raise ValueError(
                    f"runner.obs_groups.{name}: the environment has no observation group {group!r}, only "
                    f"{', '.join(sizes)}."
                )
        lines.append(f"set             {name}: {' + '.join(groups)}: {sum(sizes[group] for group in groups)} values")
    lines.append(f"actions         {spec.num_actions}")
    if spec.action_low is None or spec.action_high is None:
        lines.append("bounds          none: the policy's actions are passed on as they are")
    else:
        bounds = zip(spec.action_low, spec.action_high, strict=True)
        lines.append("bounds          " + ", ".join(f"[{low:g}, {high:g}]" for low, high in bounds))
    seconds = spec.episode_length * spec.dt
    lines.append(f"episode         {spec.episode_length} steps of {spec.dt:g} s: {seconds:g} s")
    return lines


def _parse(arguments: list[str]) -> Any:
    """Return the command, or the exit code where the parser has already answered."""
    for index, argument in enumerate(arguments):
        if argument == "--resume" and (index + 1 == len(arguments) or arguments[index + 1].startswith("-")):
            arguments[index] = "--resume=last"
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.extras.subcommand_cli_from_dict(
                COMMANDS, prog="rlbotics-jax", description="Train robots in JAX, deploy them as ONNX.", args=arguments
            )
    except SystemExit as stop:
        if not stop.code:
            return OK
        return _fail(_condense(complaint.getvalue()), BAD_INPUT)


def _condense(complaint: str) -> str:
    """Return the parser's framed message as one line: what is wrong, and the flag that was probably meant."""
    lines = [line.strip("│╭╮╰╯ ") for line in re.sub(r"\x1b\[[0-9;]*m", "", complaint).splitlines()]
    sections: list[list[str]] = [[]]
    for line in lines[1:]:  # after the title; rules part the sections, in ASCII where the terminal has no UTF-8
        if not line.strip("─-"):
            sections.append([])
        else:
            sections[-1].append(line)
    sections = [section for section in sections if section]
    sentence = " ".join(sections[0]) if sections else "the command cannot be read"
    for section in sections[1:]:
        if section[0].startswith("Available subcommands"):
            sentence += f"; {section[0][0].lower()}{' '.join(section)[1:]}"
        elif section[0].startswith("Perhaps you meant"):
            sentence += f"; perhaps you meant {' '.join(section[1:2])}"
    return f"{sentence.rstrip('.')} (see rlbotics-jax --help)"


def _raised_here(error: BaseException) -> bool:
    """Return whether this library raised the error on purpose, and not a package or a user's module that it called."""
    from rlbotics_jax.config import ConfigError

    if isinstance(error, ConfigError):
        return True
    traceback, name = error.__traceback__, ""
    while traceback is not None:
        name, traceback = traceback.tb_frame.f_globals.get("__name__", ""), traceback.tb_next
    return name.split(".")[0] in ("rlbotics_jax", "bridges", "__main__")


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: '{error.filename}'" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _show_warning(message: Any, *_: Any) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def _fail(sentence: str, code: int) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
