"""Configs of the environment, the logger and the runner, and `Config`, the whole file."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from typing import Any

from rlbotics_jax.config.algorithm import PPOConfig, algorithm_config
from rlbotics_jax.config.base import ConfigBase
from rlbotics_jax.config.errors import ConfigError, one_of, shown
from rlbotics_jax.config.models import GaussianDistributionConfig, MLPConfig, model_config
from rlbotics_jax.registry import import_module, is_import_path

FRAMEWORKS = ("mjx", "playground", "brax", "gymnasium", "envpool", "mjlab", "isaaclab")
DEVICES = ("auto", "cpu", "gpu", "mps", "cuda", "cuda:N")
TORCH_COMPILE_MODES = ("default", "max-autotune-no-cudagraphs")


@dataclass(frozen=True, kw_only=True)
class EnvConfig(ConfigBase):
    """Which environment is trained, how many of it, and where.

    Attributes:
        framework: mjx, playground, brax, gymnasium, envpool, mjlab or isaaclab; it may be left out where id is an
            import path, which then means mjx.
        id: registered task name, or an import path `module:Class`. Required: there is no task to prefer.
        num_envs: environments stepped together. Required: the right number depends on the simulator and the machine.
        device: auto (an accelerator where there is one), cpu, gpu, mps, cuda or cuda:N.
        clip_actions: bound on the absolute value of the action before the simulator sees it, or null for none.
        nconmax: size of mjlab's contact buffer, or null to let it choose; other frameworks have none.
        headless: run Isaac Lab without a window. true, since training needs none.
        kwargs: keyword arguments of the environment's class; free-form.
        imports: modules that are imported first, such as those that register your own tasks.
        init_at_random_ep_len: start each environment at a random time of its episode, so that they do not all end
            together. false, RLBotics' behaviour.
        full_reset: a true reset at every end of an episode, instead of one new initial state per environment and
            rollout. false: resets are expensive in a compiled program that runs them every step.
    """

    id: str
    num_envs: int
    framework: str | None = None
    device: str = "auto"
    clip_actions: float | None = None
    nconmax: int | None = None
    headless: bool = True
    kwargs: dict[str, Any] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    init_at_random_ep_len: bool = False
    full_reset: bool = False

    def __post_init__(self) -> None:
        if self.framework is None and is_import_path(self.id):
            object.__setattr__(self, "framework", "mjx")
        super().__post_init__()

    def validate(self) -> None:
        super().validate()
        self.check_not_empty("id")
        if self.framework is None:
            allowed = ", ".join(FRAMEWORKS)
            raise ConfigError(
                "framework", f"is required unless id is an import path 'module:Class'; allowed are {allowed}"
            )
        self.check_one_of("framework", FRAMEWORKS)
        self.check_positive("num_envs", "clip_actions", "nconmax")
        if self.device not in DEVICES[:-1] and not re.fullmatch(r"cuda:\d+", self.device):
            raise ConfigError("device", f"got {shown(self.device)}; {one_of(DEVICES, self.device)}")
        for i, module in enumerate(self.imports):
            if not all(part.isidentifier() for part in module.split(".")):
                raise ConfigError(
                    f"imports[{i}]", f"must be a module name such as 'my_package.tasks', got {shown(module)}"
                )
        for key, is_set, framework in (
            ("nconmax", self.nconmax is not None, "mjlab"),
            ("headless", not self.headless, "isaaclab"),
        ):
            if is_set and self.framework != framework:
                warnings.warn(f"env.{key} has no meaning with framework {self.framework!r}", stacklevel=2)

    def import_modules(self) -> None:
        """Import the modules of `imports`, in order.

        Raises:
            ConfigError: one of them cannot be imported.
        """
        for i, module in enumerate(self.imports):
            try:
                import_module(module)
            except ValueError as error:
                raise ConfigError(f"imports[{i}]", str(error)) from error


@dataclass(frozen=True)
class LoggerConfig(ConfigBase):
    """What a run prints and writes; it is written to log_dir/experiment/<time>/. The defaults are RLBotics'.

    Attributes:
        enabled: false writes nothing and prints nothing.
        log_name: Logger, or a path that ends so; another logger cannot be named here, use a callback of `train`.
        log_dir: folder of all runs, or null to write nothing.
        experiment: folder of the runs of one experiment inside log_dir.
        log_interval: iterations between two lines of the log, or two rows of the live table; files get every iteration.
        log_metrics: write metrics.jsonl, a TensorBoard file and the learning curve. true, since it costs 0.15 ms an
            iteration. A resumed run reads its history, and the patience of early stopping, from the old metrics.jsonl.
        log_video: write a video beside every checkpoint. false, since rendering takes time.
        log_config: write config.json. true, so that every run can be repeated.
        save_interval: iterations between two checkpoints. 1000 saves once in a default run, shipped files save oftener.
        keep_last_n: checkpoints kept in a run, 0 for all; the best policy is never removed.
        save_best: export the policy with the best mean return; false exports the last. Checkpoints hold both.
        resume: null to start afresh; to go on: last or best (of this task's runs in log_dir), a run's name, or a path;
            auto goes on with the newest run of the same experiment, environment class and, where one is given, seed, up
            to num_learning_iterations, or starts one; the flag alone means last.
        wandb_project: project on Weights & Biases that the metrics are sent to as well, or null for none.
    """

    enabled: bool = True
    log_name: str | type = "Logger"
    log_dir: str | None = "logs"
    experiment: str = "experiment"
    log_interval: int = 100
    log_metrics: bool = True
    log_video: bool = False
    log_config: bool = True
    save_interval: int = 1000
    keep_last_n: int = 5
    save_best: bool = True
    resume: str | None = None
    wandb_project: str | None = None

    def validate(self) -> None:
        super().validate()
        if _last_name(self.log_name) != "Logger":
            raise ConfigError(
                "log_name",
                f"got {shown(self.log_name)}; the only name, and so the nearest, is 'Logger'; to log elsewhere pass a "
                f"callback to rlbotics_jax.train",
            )
        self.check_not_empty("log_dir", "experiment", "resume", "wandb_project")
        self.check_positive("log_interval", "save_interval")
        self.check_non_negative("keep_last_n")


def _last_name(name: str | type) -> str:
    return re.split(r"[.:]", name)[-1] if isinstance(name, str) else name.__name__


@dataclass(frozen=True)
class OnPolicyRunnerConfig(ConfigBase):
    """One training run: which observations the networks see, how long it is, and its parts.

    Attributes:
        obs_groups: observation set -> the environment's observation groups that are joined for it. PPO needs the sets
            actor and critic; other algorithms need actor. Required: group names differ between simulators.
        class_name: OnPolicyRunner, or a path that ends so; another loop is written with rlbotics_jax.make_train_step.
        seed: 0 to 2^32 - 1, or null to draw one, which config.json then holds.
        num_learning_iterations: iterations of the run; when it is resumed, how many more, but with auto the total.
        num_steps_per_env: steps of each environment per iteration. 24 is short, for thousands of environments.
        verbose: print progress.
        check_for_nan: stop with an error at the first non-finite observation, reward or physics. false: such an
            environment is reset, its step does not count, and the number of them is logged.
        eval_interval: iterations between two evaluations of the deterministic policy, 0 for none; they change nothing
            of the training.
        eval_episodes: episodes of one evaluation.
        early_stopping_threshold: mean return of recent episodes at which the run may end early, or null.
        early_stopping_patience: iterations in a row that the mean return must have stayed at or above the threshold.
        init_from: run directory, or one checkpoint of it, that a new run takes its first parameters from, or null; a
            run that is resumed ignores it.
        load: what is taken from it: actor, critic, normalizer, optimizer; of an algorithm of your own, its state's
            fields.
        torch_compile_mode: default, max-autotune-no-cudagraphs or null; RLBotics' key, without meaning here, where
            everything is compiled: other than null warns.
        logger, algorithm, actor, critic: the parts. The actor needs a distribution_cfg to draw actions from.
    """

    obs_groups: dict[str, tuple[str, ...]]
    class_name: str | type = "OnPolicyRunner"
    seed: int | None = None
    num_learning_iterations: int = 1000
    num_steps_per_env: int = 24
    verbose: bool = True
    check_for_nan: bool = False
    eval_interval: int = 0
    eval_episodes: int = 20
    early_stopping_threshold: float | None = None
    early_stopping_patience: int = 1
    init_from: str | None = None
    load: tuple[str, ...] = ("actor", "normalizer")
    torch_compile_mode: str | None = None
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    algorithm: ConfigBase = field(default_factory=PPOConfig, metadata={"parse": algorithm_config})
    actor: ConfigBase = field(
        default_factory=lambda: MLPConfig(distribution_cfg=GaussianDistributionConfig()),
        metadata={"parse": model_config},
    )
    critic: ConfigBase = field(default_factory=MLPConfig, metadata={"parse": model_config})

    def validate(self) -> None:
        super().validate()
        if _last_name(self.class_name) != "OnPolicyRunner":
            raise ConfigError(
                "class_name",
                f"got {shown(self.class_name)}; the only name, and so the nearest, is 'OnPolicyRunner'; a training "
                f"loop of your own is written with rlbotics_jax.make_train_step",
            )
        self.check_range("seed", 0, 2**32 - 1)
        self.check_positive("num_learning_iterations", "num_steps_per_env", "eval_episodes", "early_stopping_patience")
        self.check_non_negative("eval_interval")
        self.check_not_empty("init_from", "load")
        self._check_obs_groups()
        if isinstance(self.actor, MLPConfig) and self.actor.distribution_cfg is None:
            raise ConfigError(
                "actor.distribution_cfg",
                "the actor needs a distribution to draw actions from, such as {class_name: GaussianDistribution}, "
                "got null",
            )
        if getattr(self.critic, "distribution_cfg", None) is not None:
            warnings.warn("runner.critic.distribution_cfg has no meaning: a critic gives one value", stacklevel=2)
        self.check_one_of("torch_compile_mode", TORCH_COMPILE_MODES)
        if self.torch_compile_mode is not None:
            warnings.warn(
                f"runner.torch_compile_mode {self.torch_compile_mode!r} has no meaning here: JAX compiles everything",
                stacklevel=2,
            )

    def _check_obs_groups(self) -> None:
        for name, groups in self.obs_groups.items():
            if not groups:
                raise ConfigError(f"obs_groups.{name}", "must name at least one observation group, got []")
            for i, group in enumerate(groups):
                if not group or group in groups[:i]:
                    raise ConfigError(
                        f"obs_groups.{name}[{i}]", f"must be the name of one more group, got {shown(group)}"
                    )
        for name in ("actor", "critic") if isinstance(self.algorithm, PPOConfig) else ("actor",):
            if name not in self.obs_groups:
                raise ConfigError(
                    f"obs_groups.{name}",
                    f"the {name} needs a list of observation groups, such as [observation]; the sets given are "
                    f"{', '.join(self.obs_groups) or 'none'}",
                )


@dataclass(frozen=True)
class Config(ConfigBase):
    """A whole configuration file: the environment and the training run."""

    env: EnvConfig
    runner: OnPolicyRunnerConfig

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except ConfigError as error:
            # A module of env.imports may be what registers the class. It is imported only then: reading the config of
            # a finished run must not need the simulator that its modules import.
            if not (error.path.endswith("class_name") and isinstance(self.env, EnvConfig) and self.env.imports):
                raise
            try:
                self.env.import_modules()
            except ConfigError as failed:
                raise failed.under("env") from failed.__cause__
            super().__post_init__()

    def validate(self) -> None:
        super().validate()
        num_mini_batches = getattr(self.runner.algorithm, "num_mini_batches", None)
        samples = self.env.num_envs * self.runner.num_steps_per_env
        if num_mini_batches is not None and num_mini_batches > samples:
            raise ConfigError(
                "runner.algorithm.num_mini_batches",
                f"must not exceed the {samples} samples of one iteration (env.num_envs {self.env.num_envs} x "
                f"runner.num_steps_per_env {self.runner.num_steps_per_env}), got {num_mini_batches}",
            )
