"""rlbotics_jax.flags: every key of a configuration is a flag of `train`, read as the file's value would be."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import is_typeddict

import pytest
from config_cases import whole
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbotics_jax import cli
from rlbotics_jax.config import (
    ACTIVATIONS,
    FRAMEWORKS,
    OPTIMIZERS,
    CNNConfig,
    CNNEncoderConfig,
    ConfigBase,
    GaussianDistributionConfig,
    LoggerConfig,
    PPOConfig,
    SymmetryConfig,
    from_dict,
    load_config,
    shipped_configs,
)
from rlbotics_jax.config.algorithm import SCHEDULES
from rlbotics_jax.config.models import STD_TYPES
from rlbotics_jax.config.runner import DEVICES, TORCH_COMPILE_MODES
from rlbotics_jax.flags import SHORT, Given, flag_names, flags_of

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class DecayConfig(PPOConfig):
    """PPO with an entropy that decays.

    Attributes:
        entropy_decay: factor of the entropy weight per iteration. 0.99 halves it in 69.
    """

    entropy_decay: float = 0.99
    floors: tuple[float, ...] | None = None
    mode: str | int = "slow"

    def validate(self):
        super().validate()
        self.check_range("entropy_decay", 0.0, 1.0)


class DecayPPO:
    """A user's algorithm, as far as configs are concerned."""

    config_class = DecayConfig


def configure(*arguments):
    """The config that `train` would run."""
    command = cli._parse(["train", *arguments])
    assert isinstance(command, cli.Train), command
    return command.configure()


def refuse(capsys, *arguments):
    """The one line on stderr of a `train` that ends in exit code 2."""
    assert cli.main(["train", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("error: ") and output.err.count("\n") == 1, output
    return output.err.removeprefix("error: ").strip()


def leaves(section, path):
    """Key -> value of every key that is no section, independent of what makes the flags."""
    found = {}
    for field in dataclasses.fields(section):
        value, key = getattr(section, field.name), f"{path}.{field.name}"
        found |= leaves(value, key) if isinstance(value, ConfigBase) else {key: value}
    return found


def all_leaves(config):
    return leaves(config.env, "env") | leaves(config.runner, "runner")


def at(config, key):
    """The value of a key such as `runner.algorithm.gamma`."""
    for name in key.split("."):
        config = getattr(config, name)
    return config


def flag(key, value):
    """A flag with its value as words: lists word by word, everything else as JSON, which is YAML."""
    words = list(value) if isinstance(value, tuple) else [value]
    return ["--" + key.replace("_", "-"), *(word if isinstance(word, str) else json.dumps(word) for word in words)]


def decay(values):
    values["runner"]["algorithm"]["class_name"] = f"{__name__}:DecayPPO"


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("--runner.algorithm.learning-rate 3e-4", "runner.algorithm.learning_rate", 3e-4),
        ("--runner.algorithm.learning_rate 3e-4", "runner.algorithm.learning_rate", 3e-4),
        ("--runner.algorithm.learning_rate=3e-4", "runner.algorithm.learning_rate", 3e-4),
        ("--runner.algorithm.optimizer AdamW", "runner.algorithm.optimizer", "adamw"),
        ("--runner.algorithm.schedule fixed", "runner.algorithm.schedule", "fixed"),
        ("--runner.algorithm.symmetry-cfg null", "runner.algorithm.symmetry_cfg", None),
        (
            "--runner.algorithm.symmetry-cfg {data_augmentation_func:\xa0a:b,mirror_loss_coeff:\xa02}",
            "runner.algorithm.symmetry_cfg",
            SymmetryConfig(data_augmentation_func="a:b", mirror_loss_coeff=2.0),
        ),
        ("--runner.algorithm.rnd-cfg {weight:\xa01}", "runner.algorithm.rnd_cfg", {"weight": 1}),
        ("--runner.actor.hidden-dims 64 32", "runner.actor.hidden_dims", (64, 32)),
        ("--runner.actor.hidden-dims [64,\xa032]", "runner.actor.hidden_dims", (64, 32)),
        ("--runner.actor.hidden-dims -1 8 -1", "runner.actor.hidden_dims", (-1, 8, -1)),
        ("--runner.actor.hidden-dims 64", "runner.actor.hidden_dims", (64,)),
        ("--runner.actor.distribution-cfg.std-range 0.1 2", "runner.actor.distribution_cfg.std_range", (0.1, 2.0)),
        ("--runner.actor.distribution-cfg {}", "runner.actor.distribution_cfg", GaussianDistributionConfig()),
        (
            "--runner.actor.distribution-cfg.std-type log --runner.actor.distribution-cfg {init_std:\xa02}",
            "runner.actor.distribution_cfg",
            GaussianDistributionConfig(init_std=2.0, std_type="log"),
        ),
        ("--runner.actor.obs-clip null", "runner.actor.obs_clip", None),
        ("--runner.critic.activation relu", "runner.critic.activation", "relu"),
        ("--runner.obs-groups {actor:\xa0[a],critic:\xa0[a,b]}", "runner.obs_groups", {"actor": ("a",), "critic": ("a", "b")}),
        ("--runner.seed 7 --runner.seed null", "runner.seed", None),
        ("--runner.logger.save-best false", "runner.logger.save_best", False),
        ("--runner.logger.experiment 2026-01-31", "runner.logger.experiment", "2026-01-31"),
        ("--runner.logger.experiment 007", "runner.logger.experiment", "007"),
        ("--runner.logger.experiment true", "runner.logger.experiment", "true"),
        ("--runner.logger.experiment '5'", "runner.logger.experiment", "5"),
        ("--runner.logger.experiment a:\xa0b", "runner.logger.experiment", "a: b"),
        ("--runner.logger.resume best", "runner.logger.resume", "best"),
        ("--runner.logger.resume", "runner.logger.resume", "last"),
        ("--runner.logger.log-dir null", "runner.logger.log_dir", None),
        ("--env.num-envs 1e2", "env.num_envs", 100),
        ("--env.num_envs=0x10", "env.num_envs", 16),
        ("-n8", "env.num_envs", 8),
        ("-n 8 --env.num-envs 16", "env.num_envs", 16),
        ("--env.clip-actions 2", "env.clip_actions", 2.0),
        ("--env.kwargs {a:\xa01,b:\xa0[x,null]}", "env.kwargs", {"a": 1, "b": ("x", None)}),
        ("--env.imports os", "env.imports", ("os",)),
        ("--env.imports os sys", "env.imports", ("os", "sys")),
        ("--env.imports [os]", "env.imports", ("os",)),
        ("--env.imports", "env.imports", ()),
    ],
)  # fmt: skip
def test_a_flag_gives_the_value_that_the_file_would(words, key, value):
    found = at(configure("CartpoleBalance", *(word.replace("\xa0", " ") for word in words.split(" "))), key)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("short", [name for names in SHORT.values() for name in names])
def test_short_names_are_names_of_the_same_flag(short):
    (key,) = [key for key, names in SHORT.items() if short in names]
    value = {
        "env.device": "gpu",
        "runner.logger.log_dir": "runs",
        "runner.logger.resume": "best",
        "runner.load": "critic",
    }.get(key, "7")
    config = configure("CartpoleBalance", short, value)
    assert config == configure("CartpoleBalance", "--" + key.replace("_", "-"), value) != load_config("CartpoleBalance")


@pytest.mark.parametrize("name", sorted(shipped_configs()))
def test_every_key_of_every_shipped_file_is_a_flag_that_takes_its_own_value(name):
    config = load_config(name)
    keys = all_leaves(config)
    flags = [word for key, value in keys.items() for word in flag(key, value)]
    assert configure(name, *flags) == config
    sections = {"--runner.actor.distribution-cfg"}  # may be null, so that it has a flag for the whole of it too
    assert set(flag_names(flags_of(config))) == {"--" + key.replace("_", "-") for key in keys} | sections
    assert set(flag_names(flags_of())) == set(flag_names(flags_of(config)))


def test_flags_alone_make_one_configuration_of_another(tmp_path):
    (tmp_path / "minimal.json").write_text(json.dumps(whole()))
    swingup, minimal = load_config("CartpoleSwingup"), load_config(tmp_path / "minimal.json")
    assert sum(all_leaves(minimal)[key] != value for key, value in all_leaves(swingup).items()) >= 12
    flags = [word for key, value in all_leaves(swingup).items() for word in flag(key, value)]
    assert configure(str(tmp_path / "minimal.json"), *flags) == swingup


@pytest.mark.filterwarnings("ignore:env.headless has no meaning")
@pytest.mark.parametrize("key", [key for key, value in all_leaves(load_config("example")).items() if type(value) in (bool, int, float)])  # fmt: skip
def test_a_flag_changes_its_key_and_no_other(key):
    config = load_config("example")
    value = not at(config, key) if isinstance(at(config, key), bool) else at(config, key) * 0.5
    value = at(config, key) + 1 if type(at(config, key)) is int else value
    if key == "runner.algorithm.max_learning_rate":
        value *= 4
    before, after = all_leaves(config), all_leaves(configure("example", *flag(key, value)))
    assert after == {**before, key: value} != before


@pytest.mark.parametrize(
    "arguments",
    [
        "CartpoleBalance -n 8 --runner.actor.hidden-dims 32 16",
        "-n 8 CartpoleBalance --runner.actor.hidden-dims 32 16",
        "-n8 --runner.actor.hidden-dims 32 16 CartpoleBalance",
        "--runner.actor.hidden-dims 32 16 mjx/CartpoleBalance.yaml --env.num_envs=8",
        "--no-cache CartpoleBalance --runner.actor.hidden_dims 32 16 -n 8 --no_cache",
        "--resume -n 8 CartpoleBalance --runner.actor.hidden_dims 32 16 --resume null",
        "-n 8 --runner.actor.hidden-dims [32,16] -- CartpoleBalance",
    ],
)
def test_the_config_may_stand_anywhere(arguments):
    config = load_config("CartpoleBalance")
    actor = config.runner.actor.replace(hidden_dims=(32, 16))
    expected = config.replace(env=config.env.replace(num_envs=8), runner=config.runner.replace(actor=actor))
    assert configure(*arguments.split()) == expected


def test_an_algorithm_of_ones_own_brings_its_flags(config_file, capsys):
    path = config_file(decay)
    config = configure(path, "--runner.algorithm.entropy_decay", "0.5", "--runner.algorithm.floors", "1", "2")
    assert type(config.runner.algorithm) is DecayConfig
    assert (config.runner.algorithm.entropy_decay, config.runner.algorithm.floors) == (0.5, (1.0, 2.0))
    assert configure("--runner.algorithm.mode", "3", path).runner.algorithm.mode == 3
    assert configure(path, "--runner.algorithm.floors", "null").runner.algorithm.floors is None
    sentence = refuse(capsys, path, "--runner.algorithm.entropy-decay", "2")
    assert sentence == "runner.algorithm.entropy_decay: must be in [0.0, 1.0], got 2.0"
    assert cli.main(["train", path, "--help"]) == 0
    text = flat(capsys.readouterr().out)
    assert "PPO with an entropy that decays." in text
    assert "entropy-decay FLOAT factor of the entropy weight per iteration (default: 0.99)" in text
    assert "--runner.algorithm.floors [FLOAT ...]|null (default: null)" in text
    assert "entropy-decay" not in refuse(capsys, "CartpoleBalance", "--zzz")


def test_sections_of_a_file_have_flags_and_may_be_switched_off(config_file):
    def change(values):
        values["runner"]["algorithm"]["symmetry_cfg"] = {"data_augmentation_func": "a:b"}
        values["runner"]["actor"] |= {"class_name": "CNNModel", "cnn_cfg": {"kernel_size": [3, 3, 3]}}

    path = config_file(change)
    config = configure(path, "--runner.algorithm.symmetry-cfg.mirror-loss-coeff", "0.5")
    assert config.runner.algorithm.symmetry_cfg == SymmetryConfig("a:b", mirror_loss_coeff=0.5)
    for name, words, value in (
        ("stride", ["2", "1", "1"], (2, 1, 1)),
        ("kernel_size", ["5"], 5),
        ("norm", ["none", "layer", "none"], ("none", "layer", "none")),
        ("norm", ["layer"], "layer"),
        ("max-pool", ["[true, false, true]"], (True, False, True)),
    ):
        encoder = configure(path, f"--runner.actor.cnn-cfg.{name}", *words).runner.actor.cnn_cfg
        assert encoder == CNNEncoderConfig(**{"kernel_size": (3, 3, 3), name.replace("-", "_"): value})
    whole_sections = ["--runner.algorithm.symmetry-cfg", "null", "--runner.actor.cnn-cfg", "{camera: {stride: 2}}"]
    config = configure(path, *whole_sections)
    assert config.runner.algorithm.symmetry_cfg is None
    assert isinstance(config.runner.actor, CNNConfig)
    assert config.runner.actor.cnn_cfg == {"camera": CNNEncoderConfig(stride=2)}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--runner.algorithm.learning-rate", "-3"], "runner.algorithm.learning_rate: must be greater than 0, got -3.0"),
        (["--runner.algorithm.learning-rate", "fast"], "runner.algorithm.learning_rate: must be a finite number, got 'fast'"),
        (["--runner.algorithm.learning-rate", ""], "runner.algorithm.learning_rate: must be a finite number, got ''"),
        (["--runner.algorithm.learning-rate", "3e-4", "1"], "Unrecognized options: 1 (see"),
        (["--runner.algorithm.learning-rate"], "Missing value for argument '--runner.algorithm.learning-rate'"),
        (["--runner.algorithm.schedule", "adaptve"], "runner.algorithm.schedule: got 'adaptve'; allowed are adaptive, fixed; the nearest is 'adaptive'"),
        (["--runner.algorithm.schedule", "null"], "runner.algorithm.schedule: must be a string, got null"),
        (["--runner.actor.hidden-dims", "3", "0"], "runner.actor.hidden_dims[1]: must be greater than 0, or -1 for the input width, got 0"),
        (["--runner.actor.hidden-dims"], "runner.actor.hidden_dims: must not be empty, got []"),
        (["--runner.actor.hidden-dims", "64,64"], "runner.actor.hidden_dims[0]: must be a whole number, got '64,64'"),
        (["--runner.actor.distribution-cfg.std-range", "1"], "runner.actor.distribution_cfg.std_range: must be a list of 2 finite numbers, got [1]"),
        (["--runner.actor.distribution-cfg", "null"], "runner.actor.distribution_cfg: the actor needs a distribution"),
        (
            ["--runner.actor.distribution-cfg", "null", "--runner.actor.distribution-cfg.init-std", "1"],
            "runner.actor.distribution_cfg.init_std: cannot be set, since runner.actor.distribution_cfg is null",
        ),
        (["--runner.logger.save-best", "maybe"], "runner.logger.save_best: must be true or false, got 'maybe'"),
        (["--runner.logger.log-dir", ""], "runner.logger.log_dir: must not be empty, got ''"),
        (["--runner.obs-groups", "{actor: [a]}"], "runner.obs_groups.critic: the critic needs a list of observation groups"),
        (["--env.num-envs", "null"], "env.num_envs: must be a whole number, got null"),
        (["--env.kwargs", "{a: 1"], "env.kwargs: this is no valid YAML ("),
        (["--env.kwargs", "{a: 1, a: 2}"], "env.kwargs: this is no valid YAML (the key 'a' stands twice, first in line 1)"),
        (["--env.kwargs", "&a {b: *a}"], "the values of the flags are nested too deeply"),
        (["--env.kwargs", "a"], "env.kwargs: must be a mapping, got 'a'"),
        (["--env.imports", "1"], "env.imports[0]: must be a module name such as 'my_package.tasks', got '1'"),
        (["-n", "1", "--runner.algorithm.num-mini-batches", "33"], "runner.algorithm.num_mini_batches: must not exceed the 32 samples"),
        (["--runner.algorithm.lerning-rate", "3"], "perhaps you meant --runner.algorithm.learning-rate"),
        (["--learning-rate", "3"], "perhaps you meant --runner.algorithm.learning-rate"),
        (["--algorithm.learning_rate=3"], "perhaps you meant --runner.algorithm.learning-rate"),
        (["--gama", "0.9"], "Unrecognized options: --gama, 0.9; perhaps you meant --runner.algorithm.gamma (see"),
        (["--runner.algoritm.gama", "0.9"], "perhaps you meant --runner.algorithm.gamma"),
        (["--env.kwargs.a", "1"], "perhaps you meant --env.kwargs"),
        (["CartpoleSwingup"], "Unrecognized options: CartpoleSwingup (see"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_mistakes_are_told_in_one_sentence(capsys, arguments, sentence):
    assert sentence in refuse(capsys, "CartpoleBalance", *arguments)


def test_a_missing_config_is_told_with_and_without_help(capsys):
    for arguments in (["CartpoleBalanse"], ["CartpoleBalanse", "--help"], ["--help", "CartpoleBalanse"]):
        assert "the nearest name is 'CartpoleBalance'" in refuse(capsys, *arguments)
    assert "Missing from rlbotics-jax train: CONFIG" in refuse(capsys, "-n", "8")


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0", max_codepoint=0xFFFF), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(TEXT)
def test_a_string_is_taken_as_it_stands(text):
    """Also where YAML would read a number, a date, a list, a comment or nothing usable."""
    if text in ("null", "Null", "NULL", "~") or text[0] in "'\"":
        text = "x" + text
    assert Given((text,), str).read() == Given((text,), str | None).read() == text
    assert Given((json.dumps(text),), str).read() == text
    assert Given(("a", text), tuple[str, ...]).read() == ["a", text]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("ab é:#", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.text("ab", min_size=1), PLAIN, max_size=3))
def test_a_mapping_is_read_as_in_a_file(mapping):
    read = Given((json.dumps(mapping),), dict).read()
    assert read == mapping
    values = load_config("CartpoleBalance").to_dict()
    values["env"]["kwargs"] = mapping
    assert configure("CartpoleBalance", f"--env.kwargs={json.dumps(mapping)}") == from_dict(values)


def flat(text):
    """A help text without its frames, which depend on the terminal, and line breaks."""
    return " ".join(re.sub("[│─╭╮╰╯]|-{3,}", " ", text).split())


def test_help_shows_meanings_defaults_and_groups(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["train", "--help"]) == 0
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 80
    text = flat(output)
    assert "Train a policy and export it to ONNX. Every key of the configuration is a flag." in text
    assert "The defaults here are the library's; a CONFIG before --help shows its own." in text
    for part in (
        "-n INT, --num-envs INT, --env.num-envs INT environments stepped together (no default)",
        "--seed INT|null, --runner.seed INT|null 0 to 2^32 - 1, or null to draw one, which config.json then holds (default: null)",
        "or starts one; the flag alone means last (default: null)",
        "--runner.algorithm.entropy-coef FLOAT weight of the entropy bonus (default: 0.01)",
        "--runner.algorithm.min-learning-rate FLOAT lower bound of the adaptive rate (default: 1e-05)",
        "--runner.actor.hidden-dims [INT ...] widths of the hidden layers; -1 is the width of the input; one number is one layer (default: [256, 256, 256])",
        "--runner.actor.distribution-cfg.std-range FLOAT FLOAT smallest and largest standard deviation; the parameter is projected into it after every step (default: [1.0e-06, 1000000.0])",
        "--runner.logger.save-best true|false export the policy with the best mean return; false exports the last (default: true)",
        "--env.kwargs YAML keyword arguments of the environment's class; free-form (default: {})",
        "--runner.critic.distribution-cfg YAML|null the action distribution; the actor needs one, a critic has none (default: null)",
    ):  # fmt: skip
        assert part in text, part
    headings = re.findall(r"^\W*?((?:[\w.-]+ )?options|positional arguments)\W*$", output, re.MULTILINE)
    sections = (
        "env",
        "runner",
        "runner.logger",
        "runner.algorithm",
        "runner.actor",
        "runner.actor.distribution-cfg",
        "runner.critic",
    )
    assert headings == ["positional arguments", "options", *(f"{section} options" for section in sections)]
    everyday = text[: text.index("env options")]
    assert all(re.search(rf"(?<![\w.-]){name} ", everyday) for names in SHORT.values() for name in names)


def test_every_flag_has_a_meaning_and_a_default():
    for name in [None, *shipped_configs()]:
        kinds = cli.Train.of_file(name).__annotations__["flags"].__origin__
        for key, help in helps(kinds).items():
            assert len(help.help.split()) >= 2 and help.help[-1] not in ".;,", key
            assert re.fullmatch(r"\((default: .+|no default)\)", help.help_behavior_hint), key


def helps(flags):
    found = {}
    for key, annotated in flags.__annotations__.items():
        if is_typeddict(annotated.__origin__):
            found |= helps(annotated.__origin__)
        else:
            found[key] = annotated.__metadata__[-1]
    return found


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("env.framework", FRAMEWORKS),
        ("env.device", DEVICES),
        ("runner.torch_compile_mode", TORCH_COMPILE_MODES),
        ("runner.algorithm.optimizer", OPTIMIZERS),
        ("runner.algorithm.schedule", SCHEDULES),
        ("runner.actor.activation", ACTIVATIONS),
        ("runner.actor.distribution_cfg.std_type", STD_TYPES),
    ],
)
def test_help_names_the_allowed_values(key, allowed):
    words = re.split(r"[ ,;()]+", helps(flags_of())[key].help)
    assert set(allowed) <= set(words)


def test_help_of_a_config_shows_its_values(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["train", "CartpoleBalance", "--help"]) == 0
    text = flat(capsys.readouterr().out)
    assert f"The defaults here are the values of {shipped_configs()['mjx/CartpoleBalance']}." in text
    for part in (
        "environments stepped together (default: 256)",
        "registered task name, or an import path `module:Class` (default: CartpoleBalance)",
        "weight of the entropy bonus (default: 0.005)",
        "folder of the runs of one experiment inside log_dir (default: mjx_ppo)",
        "joined for it (default: {actor: [observation], critic: [observation]})",
    ):
        assert part in text, part
    assert LoggerConfig().experiment == "experiment" and "no default" not in text


@pytest.mark.parametrize("arguments", [["--help"], ["CartpoleBalance", "--help"], ["CartpoleBalance", "--gama", "1"]])
def test_help_and_mistakes_import_no_jax(arguments):
    code = "import sys; from rlbotics_jax.cli import main; main(sys.argv[1:]); sys.exit('jax' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, "train", *arguments]
    assert subprocess.run(command, capture_output=True, env=environment).returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_know_every_flag_and_command(capsys, shell):
    assert cli.main(["--tyro-print-completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in [*flag_names(flags_of()), *cli.COMMANDS])


def test_bash_completes_commands_and_flags(tmp_path, capsys):
    assert cli.main(["--tyro-write-completion", "bash", str(tmp_path / "completion.bash")]) == 0
    (tmp_path / "try.bash").write_text(
        "source completion.bash\n"
        "function complete_words() {\n"
        '  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()\n'
        "  $(complete -p rlbotics-jax | sed 's/.*-F \\([^ ]*\\) .*/\\1/')\n"
        '  echo "${COMPREPLY[*]}"\n'
        "}\n"
        "complete_words rlbotics-jax tr\n"
        "complete_words rlbotics-jax train CartpoleBalance --runner.algorithm.le\n"
        "complete_words rlbotics-jax train --env.n\n"
        "complete_words rlbotics-jax train CartpoleBalance --runner.actor.hidden-dims 64 64 --see\n"
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "try.bash"], capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PATH": path}
    )
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        "train",
        "--runner.algorithm.learning-rate",
        "--env.num-envs --env.nconmax",
        "--seed",
    ]


@pytest.mark.parametrize("arguments", [["--tyro-print-completion"], ["--tyro-print-completion", "powershell"]])
def test_a_shell_without_completion_is_refused(capsys, arguments):
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err == "error: --tyro-print-completion must be followed by bash, zsh or fish\n"
