"""Replays the committed RLBotics figures (golden/*.npz) with this library, under the files' own keys.

In float64 it runs in a process of its own, because x64 is a setting of the whole process:
`JAX_ENABLE_X64=1 python -m golden_replay FOLDER` writes FOLDER/<name>.npz for every file but the float32 ones.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlbotics_jax.algorithms import PPO, hyperparameters_of
from rlbotics_jax.algorithms.ppo import ActRecord, PPOState, Transition
from rlbotics_jax.compilation import enable_compilation_cache, jit
from rlbotics_jax.config import GaussianDistributionConfig, MLPConfig, OnPolicyRunnerConfig, PPOConfig
from rlbotics_jax.counters import to_int
from rlbotics_jax.distributions import GaussianDistribution, SquashedGaussianDistribution
from rlbotics_jax.normalization import init_normalizer, merge, normalize
from rlbotics_jax.optimizers import make_optimizer
from rlbotics_jax.returns import gae, next_values

GOLDEN = Path(__file__).parent / "golden"
LAYERS = range(3)
FLOAT_SETTINGS = (
    "learning_rate",
    "desired_kl",
    "clip_param",
    "value_loss_coef",
    "entropy_coef",
    "max_grad_norm",
    "gamma",
    "lam",
)


def update_files(dtype: str) -> list[str]:
    """The names of the eight updates in one precision: four optimizers, two schedules."""
    return sorted(path.stem for path in GOLDEN.glob(f"update_*_{dtype}.npz"))


def load(name: str) -> dict[str, np.ndarray]:
    """One file's arrays by key."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        return dict(file)


def in_jax(record: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """The arrays in JAX's precision: float64 under x64, else float32."""
    return {name: jnp.asarray(value) for name, value in record.items()}


def replay_distributions() -> dict[str, np.ndarray]:
    """Log-probability, entropy and KL(old || new). The parameter is log_std, the only kind that RLBotics trains."""
    r, gaussian = in_jax(load("distributions")), GaussianDistribution(std_type="log")
    old, new = ({"log_std": jnp.log(r[name])} for name in ("std", "new_std"))
    squashed = SquashedGaussianDistribution(std_type="log")
    return {
        "log_prob": gaussian.log_prob(old, r["mean"], r["actions"]),
        "entropy": gaussian.entropy(old, r["mean"]),
        "kl": gaussian.kl(old, r["mean"], new, r["new_mean"]),
        "squashed_actions": squashed.action(r["squashed_latent"]),
        "squashed_log_prob": squashed.log_prob(old, r["mean"], r["squashed_latent"]),
    }


def replay_normalization() -> dict[str, np.ndarray]:
    """The statistics after each of three batches, and a fourth batch normalised. They are float32 by design."""
    r = in_jax(load("normalization"))
    state, result = init_normalizer(r["batch_0"].shape[1]), {}
    for i in range(3):
        state, _ = merge(state, r[f"batch_{i}"], jnp.ones(len(r[f"batch_{i}"]), bool))
        std = jnp.sqrt(state.variance)
        result |= {
            f"mean_{i}": state.mean,
            f"var_{i}": state.variance,
            f"std_{i}": std,
            f"count_{i}": to_int(state.count),
        }
    return result | {"outputs": normalize(state, r["inputs"])}


def replay_gae() -> dict[str, np.ndarray]:
    """Advantages and returns. RLBotics bootstraps a time-out from V(s_t), so that is given as the final value."""
    r, result = in_jax(load("gae")), {}
    for prefix in ("", "time_out_"):
        terminated, truncated = r[f"{prefix}terminated"], r[f"{prefix}truncated"]
        following = next_values(r["values"], r["last_values"], r["values"], truncated)
        advantages = gae(r["rewards"], r["values"], following, terminated, truncated, r["gamma"], r["lam"])
        result |= {f"{prefix}advantages": advantages, f"{prefix}returns": advantages + r["values"]}
    return result


SMALL = {"distributions": replay_distributions, "normalization": replay_normalization, "gae": replay_gae}


class GoldenPPO(PPO):
    """PPO that visits the samples in the recorded order, in every epoch as RLBotics does."""

    @property
    def order(self) -> np.ndarray:
        # RLBotics cuts the permutation into mini-batches; this library deals it out.
        return np.asarray(dict(self.settings.items)["order"]).reshape(self.settings.num_mini_batches, -1)

    def permutation(self, key, batch_size):
        return jnp.asarray(self.order.T.reshape(batch_size))


def parameters_of(record: dict[str, np.ndarray], prefix: str = "") -> dict[str, Any]:
    """The recorded weights (or gradients) in this library's tree."""

    def network(name: str) -> dict[str, Any]:
        layers = {
            f"Dense_{i}": {part: jnp.asarray(record[f"{prefix}{name}_{part}_{i}"]) for part in ("kernel", "bias")}
            for i in LAYERS
        }
        return {"params": layers}

    return {
        "actor": {
            "network": network("actor"),
            "distribution": {"log_std": jnp.asarray(record[f"{prefix}actor_log_std"])},
        },
        "critic": {"network": network("critic")},
    }


def flattened(tree: dict[str, Any], prefix: str) -> dict[str, np.ndarray]:
    """The inverse of `parameters_of`."""
    arrays = {f"{prefix}actor_log_std": tree["actor"]["distribution"]["log_std"]}
    for name in ("actor", "critic"):
        for i in LAYERS:
            layer = tree[name]["network"]["params"][f"Dense_{i}"]
            arrays |= {f"{prefix}{name}_{part}_{i}": layer[part] for part in ("kernel", "bias")}
    return arrays


def algorithm_of(record: dict[str, np.ndarray], optimizer: str, schedule: str) -> tuple[GoldenPPO, dict[str, Any]]:
    """The algorithm with RLBotics' settings: std_type log (all that it trains), value clipping as recorded."""
    config = OnPolicyRunnerConfig(
        obs_groups={"actor": ("policy",), "critic": ("critic",)},
        algorithm=PPOConfig(
            optimizer=optimizer,
            schedule=schedule,
            num_learning_epochs=int(record["num_learning_epochs"]),
            num_mini_batches=int(record["num_mini_batches"]),
            use_clipped_value_loss=bool(record["use_clipped_value_loss"]),
            **{name: float(record[name]) for name in FLOAT_SETTINGS},
        ),
        actor=MLPConfig(
            hidden_dims=(16, 12), distribution_cfg=GaussianDistributionConfig(init_std=0.8, std_type="log")
        ),
        critic=MLPConfig(hidden_dims=(16, 12)),
    )
    ppo = GoldenPPO.from_config(config, record["actions"].shape[-1])
    order = ("order", tuple(record["permutation"].tolist()))
    settings = type(ppo.settings)((*ppo.settings.items, order), ppo.settings.hyperparameters)
    dtype = record["rewards"].dtype
    hyperparameters = {
        name: jnp.asarray(getattr(config.algorithm, name), dtype) for name in hyperparameters_of(config.algorithm)
    }
    return GoldenPPO(settings, ppo.actor, ppo.critic, ppo.distribution, ppo.num_actions), hyperparameters


def rollout_of(record: dict[str, np.ndarray]) -> tuple[Transition, dict[str, Any]]:
    """The recorded rollout, all ends of which are terminations, and the last observations."""
    array = {name: jnp.asarray(value) for name, value in record.items() if value.ndim > 0}
    act = ActRecord(
        observations={"policy": array["actor_observations"], "critic": array["critic_observations"]},
        latent=array["actions"],
        outputs=array["old_mean"],
        log_prob=array["old_log_prob"],
        values=array["values"],
    )
    never = jnp.zeros_like(array["dones"])
    rollout = Transition(act, array["rewards"], array["dones"], never, ~never, jnp.zeros_like(array["rewards"]))
    return rollout, {"policy": array["last_actor_observations"], "critic": array["last_critic_observations"]}


def replay_update(name: str) -> dict[str, np.ndarray]:
    """One whole update: samples, gradients and first step, every mini-batch, what the update leaves."""
    record = load(name)
    _, optimizer, schedule, _ = name.split("_")
    ppo, hyperparameters = algorithm_of(record, optimizer, schedule)
    parameters = parameters_of(record)
    state = PPOState(
        parameters=parameters,
        normalizers={"actor": None, "critic": None},
        optimizer=make_optimizer(optimizer).init(parameters),
        hyperparameters=hyperparameters,
        rejected_updates=jnp.uint32(0),
    )
    rollout, last_observations = rollout_of(record)
    old_distribution = parameters["actor"]["distribution"]

    @jit
    def samples_of(state, rollout, last_observations):
        return ppo.samples(state, rollout, last_observations)

    @jit
    def step(state, samples, indices, adapt):
        batch = jax.tree.map(lambda leaf: leaf[indices], samples)
        gradients, _ = jax.grad(ppo.loss, has_aux=True)(state.parameters, state, old_distribution, batch)
        return gradients, *ppo._mini_batch_step(state, old_distribution, batch, adapt)

    @jit
    def update(state, rollout, last_observations):
        return ppo.update(state, rollout, (), last_observations, (), jax.random.key(0))

    samples, explained_variance = samples_of(state, rollout, last_observations)
    shape = record["rewards"].shape
    result = {
        "advantages": samples.advantages.reshape(shape),
        "returns": samples.returns.reshape(shape),
        "mean_explained_variance": explained_variance,
    }

    stepped, metrics = state, []
    for i in range(len(record["mini_batch_rates"])):
        indices = jnp.asarray(ppo.order[i % ppo.settings.num_mini_batches])
        gradients, stepped, terms = step(stepped, samples, indices, jnp.bool_(i > 0))
        if i == 0:
            result |= flattened(gradients, "grad_") | flattened(stepped.parameters, "first_")
        norms = {f"{net}_grad_norm": jnp.sqrt(_squared(gradients[net])) for net in ("actor", "critic")}
        metrics.append(
            {
                "surrogate": terms["Loss/surrogate"],
                "value": terms["Loss/value"],
                "entropy": terms["Loss/entropy"],
                "kl": terms["Diagnostics/kl"],
                "rates": stepped.hyperparameters["learning_rate"],
                **norms,
            }
        )
    result |= {f"mini_batch_{key}": np.array([row[key] for row in metrics]) for key in metrics[0]}

    final, means = update(state, rollout, last_observations)
    result |= flattened(final.parameters, "final_") | {
        "mean_surrogate": means["Loss/surrogate"],
        "mean_value": means["Loss/value"],
        "mean_entropy": means["Loss/entropy"],
        "mean_kl": means["Diagnostics/kl"],
        "mean_clip_fraction": means["Diagnostics/clip_fraction"],
        "final_rate": final.hyperparameters["learning_rate"],
    }
    return result


def replay(name: str) -> dict[str, np.ndarray]:
    """What this library computes from a file's inputs, under the file's own keys."""
    result = SMALL[name]() if name in SMALL else replay_update(name)
    return {key: np.asarray(value) for key, value in result.items()}


def _squared(tree: Any) -> jax.Array:
    return sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree))


def main(folder: str) -> None:
    """Replays every float64 file into `folder`."""
    enable_compilation_cache()
    for name in (*SMALL, *update_files("float64")):
        np.savez(Path(folder) / f"{name}.npz", **replay(name))


if __name__ == "__main__":
    main(sys.argv[1])
