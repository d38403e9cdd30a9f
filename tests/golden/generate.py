"""Write the golden witness files: what telekinesis-rlbotics 0.1.3 computes from given weights and data.

Run once, in an environment of its own that holds telekinesis-rlbotics 0.1.3 and torch; the test-suite reads only the
.npz files. Every number comes out of RLBotics' own code: losses and KL are read from the frame of its `update()`,
gradients before it clips them, parameters after its optimizer has stepped. See README.md for the keys.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import torch
from check import check_all
from telekinesis.rlbotics.algorithms import PPO
from telekinesis.rlbotics.config import GaussianDistributionConfig, MLPConfig, PPOConfig
from telekinesis.rlbotics.distributions import GaussianDistribution, SquashedGaussianDistribution
from telekinesis.rlbotics.models import MLPModel
from telekinesis.rlbotics.normalization import EmpiricalNormalization
from telekinesis.rlbotics.rollout import RolloutBuffer
from tensordict import TensorDict

FOLDER = Path(__file__).parent
OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop")
SCHEDULES = ("fixed", "adaptive")
DTYPES = {"float64": torch.float64, "float32": torch.float32}
GROUPS = {"actor": ["policy"], "critic": ["critic"]}

ACTOR_INPUTS, CRITIC_INPUTS, ACTIONS = 6, 9, 3
STEPS, ENVIRONMENTS, EPOCHS, MINI_BATCHES = 8, 6, 2, 4
FIXED_RATES = {"adam": 1e-3, "adamw": 1e-3, "sgd": 1e-2, "rmsprop": 1e-3}
# RLBotics multiplies both with a float32 mask, which rounds them; these and their product are exact in float32.
GAMMA, LAM = 31 / 32, 15 / 16
# RLBotics' ceiling: its rule may fire on the rounding noise of the first mini-batch, and here that changes nothing.
ADAPTIVE_RATE = 1e-2
# Found by a scan: with these the rate both falls and rises, and no KL comes within a third of a threshold.
DESIRED_KL = {"adam": 0.025, "adamw": 0.025, "sgd": 4.5e-4, "rmsprop": 0.75}
# Clipped and plain value loss alternate, so that each optimizer and each schedule meets both.
CLIPPED_VALUE_LOSS = {
    (optimizer, schedule): (i + j) % 2 == 0
    for i, optimizer in enumerate(OPTIMIZERS)
    for j, schedule in enumerate(SCHEDULES)
}


def build_ppo(
    cfg: PPOConfig, hidden: tuple[int, ...], inputs: tuple[int, int], actions: int, steps: int, environments: int
) -> PPO:
    """A PPO of RLBotics in torch's default dtype, with its own models and storage."""
    distribution = GaussianDistributionConfig(init_std=0.8, std_type="log")
    actor = MLPModel(MLPConfig(hidden_dims=hidden, activation="elu", distribution_cfg=distribution), inputs[0], actions)
    critic = MLPModel(MLPConfig(hidden_dims=hidden, activation="elu"), inputs[1], 1)
    storage = RolloutBuffer("rl", environments, steps, (inputs[0],), (actions,), critic_obs_shape=(inputs[1],))
    return PPO(cfg, actor, critic, storage, GROUPS)


def set_weights(ppo: PPO, seed: int) -> None:
    """Draw every weight with numpy, so that both dtypes start from the same numbers on any version of torch."""
    generator = np.random.default_rng(seed)
    for parameter in itertools.chain(ppo.actor.mlp.parameters(), ppo.critic.mlp.parameters()):
        scale = 1.0 / np.sqrt(parameter.shape[-1])
        parameter.data = torch.tensor(generator.uniform(-scale, scale, parameter.shape), dtype=parameter.dtype)


def arrays(ppo: PPO, prefix: str = "", gradients: bool = False) -> dict[str, np.ndarray]:
    """Weights (or gradients) by name; kernels are (inputs, outputs), the transpose of torch's."""
    named = {}

    def put(name: str, parameter: torch.nn.Parameter) -> None:
        tensor = parameter.grad if gradients else parameter.data
        named[prefix + name] = tensor.numpy().T.copy()

    for network, model in (("actor", ppo.actor), ("critic", ppo.critic)):
        layers = [layer for layer in model.mlp if isinstance(layer, torch.nn.Linear)]
        for i, layer in enumerate(layers):
            put(f"{network}_kernel_{i}", layer.weight)
            put(f"{network}_bias_{i}", layer.bias)
    put("actor_log_std", ppo.actor.distribution.log_std_param)
    return named


def observations(actor: np.ndarray, critic: np.ndarray) -> TensorDict:
    """One step's observation groups in torch's default dtype."""
    dtype = torch.get_default_dtype()
    groups = {"policy": torch.tensor(actor, dtype=dtype), "critic": torch.tensor(critic, dtype=dtype)}
    return TensorDict(groups, batch_size=(len(actor),))


def rollout(
    ppo: PPO,
    actor_observations: np.ndarray,
    critic_observations: np.ndarray,
    noise: np.ndarray,
    rewards: np.ndarray,
    dones: np.ndarray,
    time_outs: np.ndarray | None = None,
) -> None:
    """Drive act, process_env_step and compute_returns; observations hold one step more than the rest.

    The action noise is given instead of drawn, because torch draws other numbers in float32 than in float64.
    """
    distribution, dtype = ppo.actor.distribution, torch.get_default_dtype()
    steps = [observations(*groups) for groups in zip(actor_observations, critic_observations, strict=True)]
    for t in range(len(rewards)):
        distribution.sample = lambda t=t: distribution.mean + distribution.std * torch.tensor(noise[t], dtype=dtype)
        ppo.act(steps[t])
        extras = {} if time_outs is None else {"time_outs": torch.tensor(time_outs[t])}
        ppo.process_env_step(steps[t + 1], torch.tensor(rewards[t], dtype=dtype), torch.tensor(dones[t]), extras)
    del distribution.sample
    ppo.compute_returns(steps[-1])


def write_distributions() -> None:
    """Gaussian and squashed Gaussian: log-probability, entropy and KL(old || new) of 7 rows of 4 actions."""
    generator = np.random.default_rng(1)
    shape = (7, 4)
    mean, new_mean, noise = generator.normal(size=(3, *shape))
    std, new_std = generator.uniform(0.3, 1.7, (2, shape[1]))
    old, new, squashed = (kind(shape[1]) for kind in (GaussianDistribution,) * 2 + (SquashedGaussianDistribution,))
    for distribution, given_mean, given_std in ((old, mean, std), (new, new_mean, new_std), (squashed, mean, std)):
        distribution.log_std_param.data = torch.log(torch.tensor(given_std))
        distribution.update(torch.tensor(given_mean))
    actions = mean + std * noise
    latent = generator.uniform(-2.0, 2.0, shape)
    np.savez_compressed(
        FOLDER / "distributions.npz",
        mean=mean,
        std=std,
        new_mean=new_mean,
        new_std=new_std,
        actions=actions,
        log_prob=old.log_prob(torch.tensor(actions)).detach().numpy(),
        entropy=old.entropy.detach().numpy(),
        kl=old.kl_divergence(old.params, new.params).detach().numpy(),
        squashed_latent=latent,
        squashed_actions=np.tanh(latent),
        squashed_log_prob=squashed.log_prob(torch.tanh(torch.tensor(latent))).detach().numpy(),
        squashed_epsilon=1e-6,
    )


def write_normalization() -> None:
    """The observation normaliser after each of three batches, and a fourth batch normalised with the result."""
    generator = np.random.default_rng(2)
    features, sizes = 5, (7, 32, 3)
    offset, scale = generator.normal(size=features) * 3.0, generator.uniform(0.1, 5.0, features)
    normalizer = EmpiricalNormalization(features)
    record: dict[str, np.ndarray | float] = {"epsilon": normalizer.eps}
    for i, size in enumerate(sizes):
        batch = offset * (i + 1) + scale * generator.normal(size=(size, features))
        normalizer.update(torch.tensor(batch))
        record |= {
            f"batch_{i}": batch,
            f"mean_{i}": normalizer.mean.numpy(),
            f"var_{i}": normalizer._var.squeeze(0).numpy().copy(),
            f"std_{i}": normalizer.std.numpy(),
            f"count_{i}": int(normalizer.count),
        }
    inputs = offset + scale * generator.normal(size=(4, features))
    outputs = normalizer(torch.tensor(inputs)).numpy()
    np.savez_compressed(FOLDER / "normalization.npz", **record, inputs=inputs, outputs=outputs)


def write_gae() -> None:
    """Returns and unnormalised advantages of 12 steps in 5 environments, without and with time-outs."""
    generator = np.random.default_rng(3)
    shape, inputs = (12, 5), (2, 4)
    cfg = PPOConfig(gamma=GAMMA, lam=LAM, normalize_advantage_per_mini_batch=True)
    actor_observations = generator.normal(size=(shape[0] + 1, shape[1], inputs[0]))
    critic_observations = 2.0 * generator.normal(size=(shape[0] + 1, shape[1], inputs[1]))
    rewards, noise = generator.normal(size=shape), generator.normal(size=(*shape, 1))
    terminated = generator.random(shape) < 0.2
    time_outs = (generator.random(shape) < 0.2) & ~terminated
    record: dict[str, np.ndarray | float] = {"gamma": cfg.gamma, "lam": cfg.lam, "rewards": rewards}
    for prefix, truncated in (("", np.zeros(shape, bool)), ("time_out_", time_outs)):
        ppo = build_ppo(cfg, (8,), inputs, 1, *shape)
        set_weights(ppo, 4)
        rollout(ppo, actor_observations, critic_observations, noise, rewards, terminated | truncated, truncated)
        storage = ppo.storage
        record |= {
            "values": storage.values.squeeze(-1).numpy(),
            "last_values": ppo.critic(torch.tensor(critic_observations[-1])).detach().squeeze(-1).numpy(),
            f"{prefix}terminated": terminated,
            f"{prefix}truncated": truncated,
            f"{prefix}advantages": storage.advantages.squeeze(-1).numpy(),
            f"{prefix}returns": storage.returns.squeeze(-1).numpy(),
        }
    np.savez_compressed(FOLDER / "gae.npz", **record)


def update_inputs() -> dict[str, np.ndarray]:
    """The rollout and the permutation that all update files share, in float64.

    Even steps see small observations and odd steps large ones, and the permutation gathers them into mini-batches
    (mixed, small, large, mixed): one policy then shows a small and a large KL, and both branches of the rule fire.
    """
    generator = np.random.default_rng(20)
    shape = (STEPS, ENVIRONMENTS)
    scale = np.where(np.arange(STEPS + 1) % 2 == 0, 0.1, 6.0)[:, None, None]
    small, large = (
        generator.permutation(np.flatnonzero(np.repeat(np.arange(STEPS) % 2 == odd, ENVIRONMENTS))) for odd in (0, 1)
    )
    mixed = [generator.permutation(np.r_[small[i : i + 6], large[i : i + 6]]) for i in (0, 6)]
    return {
        "actor_observations": scale * generator.normal(size=(STEPS + 1, ENVIRONMENTS, ACTOR_INPUTS)),
        "critic_observations": scale * generator.normal(size=(STEPS + 1, ENVIRONMENTS, CRITIC_INPUTS)),
        "noise": generator.normal(size=(*shape, ACTIONS)),
        "rewards": generator.normal(size=shape),
        "dones": generator.random(shape) < 0.1,
        "permutation": np.concatenate([mixed[0], small[12:], large[12:], mixed[1]]),
    }


def run_update(ppo: PPO, permutation: np.ndarray) -> dict[str, np.ndarray]:
    """Run RLBotics' own update() with a given permutation; record each mini-batch and the first step in full."""
    per_mini_batch: dict[str, list[float]] = {
        key: [] for key in ("surrogate", "value", "entropy", "kl", "actor_grad_norm", "critic_grad_norm", "rates")
    }
    record: dict[str, np.ndarray] = {}
    randperm, clip, step = torch.randperm, torch.nn.utils.clip_grad_norm_, ppo.optimizer.step
    actor_parameter = next(ppo.actor.parameters())

    def given_permutation(count: int, **_: object) -> torch.Tensor:
        assert count == len(permutation)
        return torch.tensor(permutation)

    def recorded_clip(parameters, max_norm: float) -> torch.Tensor:
        parameters = list(parameters)
        is_actor = parameters[0] is actor_parameter
        if is_actor:
            caller = sys._getframe(1).f_locals
            for key, name in zip(
                ("surrogate", "value", "entropy", "kl"),
                ("surrogate_loss", "value_loss", "entropy", "kl_mean"),
                strict=True,
            ):
                per_mini_batch[key].append(caller[name].mean().item())
            if not record:
                record.update(arrays(ppo, "grad_", gradients=True))
        norm = clip(parameters, max_norm)
        per_mini_batch["actor_grad_norm" if is_actor else "critic_grad_norm"].append(norm.item())
        return norm

    def recorded_step(*args: object, **kwargs: object) -> None:
        step(*args, **kwargs)
        per_mini_batch["rates"].append(ppo.optimizer.param_groups[0]["lr"])
        if len(per_mini_batch["rates"]) == 1:
            record.update(arrays(ppo, "first_"))

    torch.randperm, torch.nn.utils.clip_grad_norm_, ppo.optimizer.step = given_permutation, recorded_clip, recorded_step
    try:
        means = ppo.update()
    finally:
        torch.randperm, torch.nn.utils.clip_grad_norm_ = randperm, clip
    record |= {f"mean_{key}": value for key, value in (means | ppo.diagnostics).items()}
    record |= {f"mini_batch_{key}": np.array(values) for key, values in per_mini_batch.items()}
    return record | arrays(ppo, "final_") | {"final_rate": ppo.learning_rate}


def update_record(optimizer: str, schedule: str, dtype: str) -> dict[str, np.ndarray | float | bool]:
    """One whole PPO update of RLBotics: what went in, what the first mini-batch did, what came out."""
    torch.set_default_dtype(DTYPES[dtype])
    rate = FIXED_RATES[optimizer] if schedule == "fixed" else ADAPTIVE_RATE
    cfg = PPOConfig(
        optimizer=optimizer,
        learning_rate=rate,
        schedule=schedule,
        gamma=GAMMA,
        lam=LAM,
        num_learning_epochs=EPOCHS,
        num_mini_batches=MINI_BATCHES,
        desired_kl=DESIRED_KL[optimizer],
        use_clipped_value_loss=CLIPPED_VALUE_LOSS[optimizer, schedule],
    )
    ppo = build_ppo(cfg, (16, 12), (ACTOR_INPUTS, CRITIC_INPUTS), ACTIONS, STEPS, ENVIRONMENTS)
    set_weights(ppo, 6)
    inputs = update_inputs()
    permutation = inputs.pop("permutation")
    initial = arrays(ppo)
    rollout(ppo, **inputs)
    storage = ppo.storage
    settings = ("learning_rate", "desired_kl", "clip_param", "value_loss_coef", "entropy_coef", "max_grad_norm")
    settings += ("gamma", "lam", "use_clipped_value_loss", "num_learning_epochs", "num_mini_batches")
    record = {name: getattr(cfg, name) for name in settings} | initial
    record |= {
        "actor_observations": storage.observations.numpy(),
        "critic_observations": storage.critic_observations.numpy(),
        "last_actor_observations": inputs["actor_observations"][-1].astype(dtype),
        "last_critic_observations": inputs["critic_observations"][-1].astype(dtype),
        "actions": storage.actions.numpy(),
        "old_log_prob": storage.actions_log_prob.squeeze(-1).numpy(),
        "old_mean": storage.distribution_params[0].numpy(),
        "old_std": storage.distribution_params[1].numpy(),
        "values": storage.values.squeeze(-1).numpy(),
        "rewards": storage.rewards.squeeze(-1).numpy(),
        "dones": inputs["dones"],
        "advantages": storage.advantages.squeeze(-1).numpy(),
        "returns": storage.returns.squeeze(-1).numpy(),
        "permutation": permutation,
    }
    record |= run_update(ppo, permutation)
    torch.set_default_dtype(torch.float64)
    return record


def main() -> None:
    """Write all files, read them back and check them."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    write_distributions()
    write_normalization()
    write_gae()
    for optimizer, schedule, dtype in itertools.product(OPTIMIZERS, SCHEDULES, DTYPES):
        record = update_record(optimizer, schedule, dtype)
        np.savez_compressed(FOLDER / f"update_{optimizer}_{schedule}_{dtype}.npz", **record)
    check_all(FOLDER)


if __name__ == "__main__":
    main()
