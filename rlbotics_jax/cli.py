"""The command line: train, eval, play, export, import, list, inspect. Help and bad input need no jax."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn, TypedDict, get_type_hints

import tyro

from rlbotics_jax.arguments import condense, split_config, with_nearest

if TYPE_CHECKING:
    from rlbotics_jax.config import Config
    from rlbotics_jax.envs import EnvironmentSpec

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 128 + signal.SIGINT

# Of the operating system's errors, those that another path or another flag mends.
_PATH_ERRORS = (FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError, IsADirectoryError)


def _argument(help: str, metavar: str | None = None) -> Any:
    return tyro.conf.arg(help=help, metavar=metavar, help_behavior_hint="")


_Config = Annotated[
    str, tyro.conf.Positional, _argument("a YAML file, a run's config.json, or a name that `list` prints", "CONFIG")
]
_Run = Annotated[str, tyro.conf.Positional, _argument("the folder of a run", "RUN")]
_Which = Annotated[
    Literal["auto", "best", "last"], _argument("which policy; auto is the best, where there is one", "auto|best|last")
]


def _which(name: str) -> str | None:
    return None if name == "auto" else name


class _NoFlags(TypedDict):
    """What stands for the flags of `train` until its CONFIG is known; `Train.of_file` then puts them in."""


@dataclass(frozen=True)
class Train:
    """Train a policy and export it to ONNX."""

    config: _Config
    flags: Annotated[_NoFlags, tyro.conf.arg(name="")]
    no_cache: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, _argument("compile afresh instead of using the cache on disk")
    ] = False
    profile: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        _argument("write a trace of a few warm iterations into the run, for TensorBoard and Perfetto"),
    ] = False
    file: ClassVar[Any] = None  # the config that CONFIG names; `of_file` sets it

    def run(self) -> int:
        config = self.configure()
        from rlbotics_jax.runs import POLICY_FILE
        from rlbotics_jax.training import train

        result = train(config, compilation_cache=not self.no_cache, profile=self.profile)
        if result.run_directory is not None:
            policy = result.run_directory / POLICY_FILE
            print(f"Run: {result.run_directory}")
            if policy.is_file():
                print(f"Policy: {policy}")
        return OK if result.interrupted is None else 128 + result.interrupted

    def configure(self) -> Config:
        """Return the file's config with the flags in place of its values, validated as a whole."""
        from rlbotics_jax.config import load_config
        from rlbotics_jax.flags import override

        return override(load_config(self.config) if self.file is None else self.file, self.flags)

    @classmethod
    def of_file(cls, name: str | None) -> type[Train]:
        """Return this command with a flag for every key of the config `name`, which may be a file's path.

        Its flags depend on the file, since an algorithm of one's own has keys of its own. Without a name they are the
        library's.
        """
        from rlbotics_jax.config import find_config, load_config
        from rlbotics_jax.flags import flags_of

        file = None if name is None else load_config(name)
        if name is None:
            defaults = "The defaults here are the library's; a CONFIG before --help shows its own."
        else:
            defaults = f"The defaults here are the values of {find_config(name)}."
        description = f"{cls.__doc__}\n\nEvery key of the configuration is a flag.\n\n{defaults}"
        return make_dataclass(
            cls.__name__,
            [("flags", Annotated[flags_of(file), tyro.conf.arg(name="")])],
            bases=(cls,),
            namespace={"file": file, "__doc__": description},
            frozen=True,
        )


@dataclass(frozen=True)
class Eval:
    """Evaluate a run's deterministic policy, print its returns and write them as JSON."""

    run_folder: Annotated[_Run, tyro.conf.arg(name="run")]
    episodes: Annotated[int, _argument("number of episodes; 100 by default", "N")] = 100
    which: _Which = "auto"
    seed: Annotated[int, _argument("of the episodes; 0 by default", "SEED")] = 0
    output: Annotated[Path | None, _argument("the file to write; evaluation.json in the run by default", "PATH")] = None

    def run(self) -> int:
        if self.episodes < 1:
            raise ValueError(f"--episodes must be at least 1, not {self.episodes}.")
        from rlbotics_jax.evaluation import EVALUATION_FILE, evaluate_run

        report = evaluate_run(self.run_folder, self.episodes, self.seed, _which(self.which), self.output)
        print(f"policy   {report['policy']}, of iteration {report['iteration']}")
        print(
            "return   mean {mean_reward:.1f}  std {std_reward:.1f}  min {min_reward:.1f}  max {max_reward:.1f}  "
            "({episodes} episodes)".format_map(report)
        )
        print(f"length   mean {report['mean_length']:.1f}")
        print(f"Written: {self.output or Path(self.run_folder) / EVALUATION_FILE}")
        return OK


@dataclass(frozen=True)
class Play:
    """Play one deterministic episode of a run's policy and, with --video, film it."""

    run_folder: Annotated[_Run, tyro.conf.arg(name="run")]
    video: Annotated[Path | None, _argument("the MP4 file to write", "PATH")] = None
    which: _Which = "auto"
    seed: Annotated[int, _argument("of the episode; 0 by default", "SEED")] = 0

    def run(self) -> int:
        from rlbotics_jax.evaluation import evaluate, load_run_environment
        from rlbotics_jax.runs import load_policy

        environment, policy = load_run_environment(self.run_folder), load_policy(self.run_folder, _which(self.which))
        if self.video is None:
            results = evaluate(policy, environment, num_episodes=1, seed=self.seed)
            episode_return, length = results["returns"][0], results["lengths"][0]
        else:
            from rlbotics_jax.video import record_episode

            path, episode_return, length = record_episode(policy, environment, self.video, seed=self.seed)
            print(f"Video: {path}")
        print(f"return {episode_return:.1f}  length {length} ({length * environment.dt:.1f} s)")
        return OK


@dataclass(frozen=True)
class Export:
    """Write a run's policy as one file, or the bundle that a robot needs."""

    run_folder: Annotated[_Run, tyro.conf.arg(name="run")]
    output: Annotated[
        Path | None, _argument("the file to write; policy.onnx, policy.pt or model.pt in the run by default", "PATH")
    ] = None
    which: _Which = "auto"
    format: Annotated[
        Literal["onnx", "torchscript", "torch"],
        _argument("onnx by default; torch is a checkpoint for RLBotics", "onnx|torchscript|torch"),
    ] = "onnx"
    bundle: Annotated[
        Path | None,
        _argument("the folder to write with policy.onnx, policy.py, metadata.json and example.py in it", "DIR"),
    ] = None

    def run(self) -> int:
        from rlbotics_jax.exports import export, export_bundle

        if self.bundle is None:
            print(f"Written: {export(self.run_folder, self.output, _which(self.which), self.format)}")
        elif self.output is not None or self.format != "onnx":
            raise ValueError("--bundle writes a folder of its own, with an ONNX file; leave out --output and --format.")
        else:
            print(f"Bundle: {export_bundle(self.run_folder, self.bundle, _which(self.which))}")
        return OK


@dataclass(frozen=True)
class Import:
    """Make a run from a PyTorch checkpoint of RLBotics or rsl_rl, to train on from, evaluate or export."""

    checkpoint: Annotated[Path, tyro.conf.Positional, _argument("the file, such as model_best.pt", "FILE")]
    config: Annotated[
        str,
        _argument(
            "what the checkpoint is of: a YAML file, a run's config.json, or a name that `list` prints", "CONFIG"
        ),
    ]

    def run(self) -> int:
        from rlbotics_jax.importing import import_checkpoint

        run = import_checkpoint(self.checkpoint, self.config)
        print(f"Run: {run}")
        print(f"Train on with: {shlex.join(['rlbotics-jax', 'train', self.config, '--resume', str(run)])}")
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


COMMANDS = {
    "train": Train,
    "eval": Eval,
    "play": Play,
    "export": Export,
    "import": Import,
    "list": List,
    "inspect": Inspect,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 it worked; 1 it failed while running; 2 bad input, told in one sentence on stderr; 130, 143 or 138 stopped by
    Ctrl-C, SIGTERM or SIGUSR1 (a training run saves its state first). An error that this library did not raise on
    purpose keeps its traceback.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # A console script has its own folder on the path, not the user's, whose modules a config may name.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            command = _parse(arguments)
            return command if isinstance(command, int) else command.run()
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
    commands: dict[str, Any] = dict(COMMANDS)
    if arguments[:1] == ["train"]:
        name, rest = split_config(arguments[1:], _switches())
        commands["train"] = Train.of_file(name)
        arguments = ["train", *([] if name is None else [name]), *rest]
    elif arguments[:1] and arguments[0].startswith("--tyro-"):
        if arguments[1:2] not in (["bash"], ["zsh"], ["fish"]):
            return _fail(f"{arguments[0]} must be followed by bash, zsh or fish", BAD_INPUT)
        commands["train"] = Train.of_file(None)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.extras.subcommand_cli_from_dict(
                commands, prog="rlbotics-jax", description="Train robots in JAX, deploy them as ONNX.", args=arguments
            )
    except SystemExit as stop:
        if not stop.code:
            return OK
        sentence = condense(complaint.getvalue())
        if commands["train"] is not Train:
            from rlbotics_jax.flags import flag_names

            sentence = with_nearest(sentence, flag_names(get_type_hints(commands["train"])["flags"]))
        return _fail(f"{sentence} (see rlbotics-jax --help)", BAD_INPUT)


def _switches() -> set[str]:
    """Return the flags of `train` that take no value."""
    return {f"--{name.replace('_', '-')}" for name, kind in get_type_hints(Train).items() if kind is bool}


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


def run_console_script() -> NoReturn:
    """Run `main` as a process of its own, which a second Ctrl-C ends at once."""
    from rlbotics_jax.interrupts import exit_on_second_interrupt

    with exit_on_second_interrupt():
        raise SystemExit(main())


if __name__ == "__main__":
    run_console_script()
