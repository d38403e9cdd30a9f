"""A critic that uses the actor's image encoders: they exist once, among the actor's parameters and statistics."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import PyTree

from rlbotics_jax.cnn import CNNModel, encoder_name
from rlbotics_jax.config import ConfigError
from rlbotics_jax.models import GroupStatistics, Model

KEY = "runner.algorithm.share_cnn_encoders"


def check_sharing(actor: Model, critic: Model, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Checks that the two can have the same encoders, given the shapes of the environment's groups.

    Raises:
        ConfigError: one of them is no CNN model, or they differ in their image groups, in an encoder, or in how
            observations are normalised before it.
    """
    for name, model in (("actor", actor), ("critic", critic)):
        if not isinstance(model.module, CNNModel):
            raise ConfigError(KEY, f"runner.{name} is no CNNModel but {type(model.module).__name__}; set it to false")
    images, others = ({group for group in m.groups if len(shapes[group]) == 3} for m in (actor, critic))
    if images != others:
        raise ConfigError(
            KEY, f"the actor reads the images {sorted(images)}, the critic {sorted(others)}; give both the same"
        )
    for group in sorted(images):
        if actor.module.encoder_config(group) != critic.module.encoder_config(group):
            raise ConfigError(KEY, f"actor and critic have different encoders of {group!r}; give both the same cnn_cfg")
    for key, ours, theirs in (
        ("obs_normalization", actor.normalized, critic.normalized),
        ("image_normalization", actor.images_normalized, critic.images_normalized),
        ("obs_clip", actor.obs_clip, critic.obs_clip),
    ):
        if ours != theirs:
            raise ConfigError(KEY, f"{key} is {ours} for the actor and {theirs} for the critic; give both the same")


def without_encoders(network: PyTree, statistics: GroupStatistics) -> tuple[PyTree, GroupStatistics]:
    """Returns a CNN model's parameters and statistics without those of its encoders and of the images they read."""
    parameters = network["params"]
    vectors = {g: state for g, state in statistics.observations.items() if encoder_name(g) not in parameters}
    return {"params": {"head": parameters["head"]}}, GroupStatistics(observations=vectors, batch_norm={})


def with_encoders(
    network: PyTree, statistics: GroupStatistics, actor_network: PyTree, actor_statistics: GroupStatistics
) -> tuple[PyTree, GroupStatistics]:
    """Returns a critic's parameters and statistics with what `without_encoders` took away: the actor's."""
    return (
        {"params": {**actor_network["params"], **network["params"]}},
        GroupStatistics(
            observations={**actor_statistics.observations, **statistics.observations},
            batch_norm=actor_statistics.batch_norm,
        ),
    )
