"""rlbotics_jax.cli: flags, the answers to bad input (exit code 2, one line on stderr), and what imports jax."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from rlbotics_jax import cli
from rlbotics_jax.config import ConfigError, shipped_configs
from rlbotics_jax.envs import EnvironmentSpec

ROOT = Path(__file__).parents[1]

BROKEN_TASKS = """
class RaisesValueError:
    def __init__(self):
        raise ValueError("a fault of this module")

class IsInterrupted:
    def __init__(self):
        raise KeyboardInterrupt
"""


def run(*arguments):
    """Run the command line in an interpreter of its own and report whether it imported jax."""
    code = (
        "import sys; from rlbotics_jax.cli import main; code = main(sys.argv[1:]);"
        "print('jax' in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment)


def refuse(capsys, *arguments):
    """Run a command that must end in exit code 2 and one line on stderr; return this line."""
    assert cli.main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("error: ") and output.err.count("\n") == 1, output
    return output.err.removeprefix("error: ").strip()


def test_help_is_fast_and_imports_no_jax():
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        result = run("--help")
        seconds.append(time.perf_counter() - start)
        assert result.returncode == 0 and result.stderr.strip() == "False"
        assert all(name in result.stdout for name in cli.COMMANDS)
    assert min(seconds) < 1.0


@pytest.mark.parametrize("arguments", [["list"], ["train", "--help"], ["train", "no_such_config"]])
def test_what_needs_no_jax_imports_none(arguments):
    assert run(*arguments).stderr.splitlines()[-1] == "False"


def test_list_prints_every_shipped_config(capsys):
    assert cli.main(["list"]) == 0
    names = capsys.readouterr().out.split()
    assert names == list(shipped_configs()) and {"mjx/CartpoleBalance", "mjx/CartpoleSwingup"} <= set(names)


def test_flags_replace_the_values_of_the_file():
    flags = "-n 1e2 -d cpu -i 7 --log-dir elsewhere --seed 3 --resume best"
    config = cli._parse(["train", "CartpoleBalance", *flags.split()]).configure()
    assert (config.env.num_envs, config.env.device, config.runner.num_learning_iterations) == (100, "cpu", 7)
    assert (config.runner.seed, config.runner.logger.log_dir, config.runner.logger.resume) == (3, "elsewhere", "best")


def test_every_spelling_of_a_flag_and_the_values_that_stay():
    for flag in ("-i", "--iterations", "--num-learning-iterations"):
        assert cli._parse(["train", "CartpoleBalance", flag, "7"]).configure().runner.num_learning_iterations == 7
    config = cli._parse(["train", "CartpoleBalance", "--num-envs", "64"]).configure()
    unchanged = cli._parse(["train", "CartpoleBalance"]).configure()
    assert config == unchanged.replace(env=unchanged.env.replace(num_envs=64))


@pytest.mark.parametrize("rest", [["--resume"], ["--resume", "-i", "2"], ["--resume", "last"], ["--resume=last"]])
def test_resume_alone_means_last(rest):
    assert cli._parse(["train", "CartpoleBalance", *rest]).configure().runner.logger.resume == "last"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Expected one of {train, eval, play, export, import, list, inspect}"),
        (["trian"], "available subcommands: train, eval, play, export, import, list, inspect"),
        (["train"], "Missing from rlbotics-jax train: CONFIG"),
        (["train", "CartpoleBalance", "-n"], "Missing value for argument '-n/--num-envs/--env.num-envs'"),
        (["train", "CartpoleBalance", "--num-env", "3"], "perhaps you meant -n, --num-envs, --env.num-envs INT"),
        (["train", "CartpoleBalance", "-n", "many"], "env.num_envs: must be a whole number, got 'many'"),
        (["train", "CartpoleBalance", "-n", "0"], "env.num_envs: must be greater than 0, got 0"),
        (["train", "CartpoleBalance", "-d", "gpuu"], "env.device: got 'gpuu'; allowed are auto, cpu, gpu"),
        (["train", "CartpoleBalance", "--seed", "-1"], "runner.seed"),
        (["train", "CartpoleBalance", "-i", "nan"], "runner.num_learning_iterations"),
        (["train", "CartpoleBalanse"], "the nearest name is 'CartpoleBalance'"),
        (["inspect", "no/such/file.yaml"], "no/such/file.yaml: there is no such file"),
        (["export", "RUN", "--which", "first"], "invalid choice 'first' for argument '--which'"),
        (["export", "no_such_run"], "no_such_run"),
        (["play", "no_such_run"], "no_such_run"),
        (["eval", "no_such_run"], "no_such_run"),
        (["eval", "RUN", "--episodes", "0"], "--episodes must be at least 1, not 0"),
        (["eval", "RUN", "--episodes", "some"], "--episodes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_flags(capsys, arguments, message):
    assert message in refuse(capsys, *arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v["runner"]["algorithm"].update(lerning_rate=1e-3), "learning_rate"),
        (lambda v: v["runner"]["algorithm"].update(learning_rate=float("inf")), "runner.algorithm.learning_rate"),
        (lambda v: v["env"].update(num_envs=1) or v["runner"]["algorithm"].update(num_mini_batches=33), "33"),
        (lambda v: v["env"].update(id="CartpoleBalanse"), "CartpoleBalance"),
        (lambda v: v["env"].update(imports=["no_such_module"]), "no_such_module"),
        (lambda v: v["runner"]["obs_groups"].update(actor=["obs"]), "runner.obs_groups"),
        (lambda v: v.pop("env"), "env"),
    ],
    ids=["typo", "non-finite", "mini-batches", "task", "import", "group", "section"],
)
def test_bad_config_ends_before_anything_is_written(capsys, tmp_path, monkeypatch, config_file, change, message):
    monkeypatch.chdir(tmp_path)
    path = config_file(change)
    assert message in refuse(capsys, "train", path)
    assert list(tmp_path.iterdir()) == [Path(path)]


def test_unwritable_log_directory(capsys, tmp_path, config_file):
    path = config_file()
    (tmp_path / "file").write_text("not a folder")
    assert "file" in refuse(capsys, "train", path, "--log-dir", str(tmp_path / "file" / "logs"))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["config.yaml", "file"]


def test_unknown_group_is_told_by_inspect(capsys, config_file):
    path = config_file(lambda v: v["runner"]["obs_groups"].update(critic=["state"]))
    assert cli.main(["inspect", path]) == 2
    assert (
        "error: runner.obs_groups.critic: the environment has no observation group 'state', only observation.\n"
        in capsys.readouterr().err
    )


def test_faults_of_others_keep_their_traceback_and_interrupts_give_130(capsys, tmp_path, monkeypatch, config_file):
    (tmp_path / "broken_tasks.py").write_text(BROKEN_TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="a fault of this module"):
        cli.main(["inspect", config_file(lambda v: v["env"].update(id="broken_tasks:RaisesValueError"))])
    assert cli.main(["inspect", config_file(lambda v: v["env"].update(id="broken_tasks:IsInterrupted"))]) == 130
    assert capsys.readouterr().err.endswith("error: interrupted\n")


def test_warnings_are_one_line(capsys, config_file):
    arguments = ["inspect", config_file(lambda v: v["runner"].update(torch_compile_mode="default"))]
    assert cli.main(arguments) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "torch_compile_mode" in line]
    assert len(lines) == 1 and lines[0].startswith("warning: runner.torch_compile_mode 'default' has no meaning here")


def test_description_of_an_environment():
    config = cli._parse(["train", "CartpoleBalance"]).configure()
    groups = {"actor": ("joints", "command"), "critic": ("joints",)}
    config = config.replace(runner=config.runner.replace(obs_groups=groups))
    spec = EnvironmentSpec(
        observation_shapes={"joints": (12,), "command": (3,)},
        num_actions=2,
        action_low=(-1.0, -0.5),
        action_high=(1.0, 2.0),
        episode_length=1000,
        dt=0.02,
    )
    assert cli.describe(config, spec) == [
        "environment     mjx CartpoleBalance, 256 environments",
        "group           joints: 12 values",
        "group           command: 3 values",
        "set             actor: joints + command: 15 values",
        "set             critic: joints: 12 values",
        "actions         2",
        "bounds          [-1, 1], [-0.5, 2]",
        "episode         1000 steps of 0.02 s: 20 s",
    ]


def test_config_errors_of_a_users_module_are_bad_input():
    try:
        exec(compile("raise E('runner.x', 'must be y')", "user.py", "exec"), {"E": ConfigError, "__name__": "user"})
    except ConfigError as error:
        assert cli._raised_here(error) and cli._sentence(error) == "runner.x: must be y"


def test_a_task_beside_the_config_is_found(tmp_path):
    """A console script has its own folder on the path, not the one it is started in."""
    (tmp_path / "my_task.py").write_text(
        "from rlbotics_jax.envs.cartpole import CartpoleBalance\n\n\nclass MyTask(CartpoleBalance):\n    pass\n"
    )
    values = yaml.safe_load((ROOT / "configs" / "mjx" / "CartpoleBalance.yaml").read_text())
    values["env"]["id"] = "my_task:MyTask"
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(values))
    script = tmp_path / "bin" / "console_script.py"
    script.parent.mkdir()
    script.write_text("import sys\nfrom rlbotics_jax.cli import main\n\nsys.exit(main())\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, str(script), "inspect", "task.yaml"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert "mjx my_task:MyTask, 256 environments" in result.stdout
