"""Configs of PPO and of its symmetry extension."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rlbotics_jax.config.base import ConfigBase
from rlbotics_jax.config.choice import chosen_config
from rlbotics_jax.config.coercion import coerce
from rlbotics_jax.config.errors import ConfigError, shown
from rlbotics_jax.registry import ALGORITHMS

OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop")
SCHEDULES = ("adaptive", "fixed")


@dataclass(frozen=True)
class SymmetryConfig(ConfigBase):
    """Symmetry of the robot, as mirrored samples and as a loss.

    Writing the section means that symmetry is wanted, so both uses are on by default.

    Attributes:
        data_augmentation_func: the mirror function, or its import path `module:function` (`module.function` too). Only
            the owner of the robot knows which joint mirrors which, so it is required.
        use_data_augmentation: append the mirrored samples to every mini-batch.
        use_mirror_loss: add the squared difference between the policy and its mirror image to the loss.
        mirror_loss_coeff: weight of that loss. 1.0 is RLBotics' value.
    """

    data_augmentation_func: str | Callable
    use_data_augmentation: bool = True
    use_mirror_loss: bool = True
    mirror_loss_coeff: float = 1.0

    def validate(self) -> None:
        super().validate()
        function = self.data_augmentation_func
        if isinstance(function, str) and not all(
            part.isidentifier() for part in function.replace(":", ".", 1).split(".")
        ):
            raise ConfigError(
                "data_augmentation_func", f"must be 'module:function' or a function, got {shown(function)}"
            )
        if isinstance(function, str) and "." not in function and ":" not in function:
            raise ConfigError(
                "data_augmentation_func", f"must name a module, as 'module:function', got {shown(function)}"
            )
        self.check_non_negative("mirror_loss_coeff")


@dataclass(frozen=True)
class PPOConfig(ConfigBase):
    """Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347).

    The defaults are RLBotics' except where said. The values that all 55 of its shipped files agree on are among them:
    adam, 4 mini-batches, adaptive rate, desired_kl 0.01, clip 0.2, lam 0.95, gradient norm 1.0, value weight 1.0.

    Attributes:
        class_name: PPO, an import path `module:Class` or a class; a subclass names its config as `config_class`.
        optimizer: adam, adamw, sgd or rmsprop, in any case. adam needs the least tuning.
        learning_rate: first learning rate. 1e-3 is only a start, since the adaptive schedule moves it.
        min_learning_rate: lower bound of the adaptive rate. 1e-5 is RLBotics' built-in bound.
        max_learning_rate: upper bound of the adaptive rate. 1e-2 is RLBotics' built-in bound.
        num_learning_epochs: passes over each rollout. 5 reuses samples without leaving the clipped region.
        num_mini_batches: parts per pass, each one gradient step. 4 keeps them large with thousands of environments.
        schedule: adaptive holds the KL divergence near desired_kl by moving the learning rate; fixed does not. adaptive
            spares tuning the rate for each robot.
        value_loss_coef: weight of the value loss. 1.0, since actor and critic share no parameters unless
            share_cnn_encoders is true.
        clip_param: bound on the change of the probability ratio. 0.2 is the paper's value.
        use_clipped_value_loss: also bound the change of the value by clip_param. false here: the bound is absolute, so
            that its effect depends on the scale of the returns and it slows the critic where they are large. RLBotics'
            default is true; no file that it ships sets the key.
        desired_kl: KL divergence between the old and the new policy that the adaptive schedule aims at; null only with
            fixed.
        entropy_coef: weight of the entropy bonus. 0.01 keeps the standard deviation from collapsing early.
        gamma: discount factor. 0.99 looks 100 steps ahead.
        lam: decay of generalised advantage estimation. 0.95 trades a little bias for much less variance.
        max_grad_norm: bound on the norm of the gradient, separately for actor and critic. 1.0 is RLBotics' value.
        normalize_advantage_per_mini_batch: normalise advantages in each mini-batch instead of once per rollout. false,
            since the moments of the whole rollout have less noise.
        share_cnn_encoders: let the critic use the actor's image encoders; both must read the same images, with the same
            encoders, obs_normalization and obs_clip. false, as in RLBotics.
        max_rejected_updates: training stops with an error after so many consecutive mini-batch updates with non-finite
            gradients. 100 is more than one iteration has, so that one bad rollout does not end a run.
        rnd_cfg: settings of random network distillation, or null for none.
        symmetry_cfg: settings of the symmetry extension, or null for none.
    """

    class_name: str | type = "PPO"
    optimizer: str = field(default="adam", metadata={"parse": lambda name: coerce(name, str).lower()})
    learning_rate: float = 1e-3
    num_learning_epochs: int = 5
    num_mini_batches: int = 4
    schedule: str = "adaptive"
    value_loss_coef: float = 1.0
    clip_param: float = 0.2
    use_clipped_value_loss: bool = False
    desired_kl: float | None = 0.01
    entropy_coef: float = 0.01
    gamma: float = 0.99
    lam: float = 0.95
    max_grad_norm: float = 1.0
    normalize_advantage_per_mini_batch: bool = False
    share_cnn_encoders: bool = False
    rnd_cfg: dict[str, Any] | None = None
    symmetry_cfg: SymmetryConfig | None = None
    min_learning_rate: float = 1e-5
    max_learning_rate: float = 1e-2
    max_rejected_updates: int = 100

    def validate(self) -> None:
        super().validate()
        self.check_class_name(ALGORITHMS)
        self.check_one_of("optimizer", OPTIMIZERS)
        self.check_one_of("schedule", SCHEDULES)
        self.check_positive("learning_rate", "min_learning_rate", "max_learning_rate")
        self.check_positive("num_learning_epochs", "num_mini_batches", "max_rejected_updates")
        self.check_positive("clip_param", "max_grad_norm", "desired_kl")
        self.check_non_negative("value_loss_coef", "entropy_coef")
        self.check_range("gamma", 0.0, 1.0)
        self.check_range("lam", 0.0, 1.0)
        if self.min_learning_rate > self.max_learning_rate:
            raise ConfigError(
                "min_learning_rate",
                f"must not exceed max_learning_rate {self.max_learning_rate}, got {self.min_learning_rate}",
            )
        if self.desired_kl is None and self.schedule == "adaptive":
            raise ConfigError("desired_kl", "must be greater than 0 with schedule 'adaptive', got null")


def algorithm_config(value: Any) -> ConfigBase:
    """The config of `runner.algorithm`, of the class that belongs to its `class_name`."""
    return chosen_config(value, ALGORITHMS, PPOConfig)
