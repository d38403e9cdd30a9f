"""Check the golden files against plain numpy: neither torch nor RLBotics nor JAX is needed.

generate.py ends with these checks; `python check.py` repeats them on the committed files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np


def gaussian_log_prob(z: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Log-density of standardised samples z, summed over the last axis."""
    return (-0.5 * z**2 - np.log(std) - 0.5 * np.log(2 * np.pi)).sum(-1)


def gae(
    rewards: np.ndarray,
    values: np.ndarray,
    last_values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    gamma: float,
    lam: float,
) -> np.ndarray:
    """Advantages (T, N); where truncated the next value is V(s_t), RLBotics' stand-in for the final observation."""
    advantages, carry = np.zeros_like(rewards), np.zeros_like(last_values)
    for t in reversed(range(len(rewards))):
        following = last_values if t == len(rewards) - 1 else values[t + 1]
        following = np.where(terminated[t], 0.0, np.where(truncated[t], values[t], following))
        carry = rewards[t] + gamma * following - values[t] + gamma * lam * carry * ~(terminated[t] | truncated[t])
        advantages[t] = carry
    return advantages


def check_small_files(folder: Path) -> None:
    """Recompute distributions, normaliser and GAE in numpy from the files on disk."""
    d = np.load(folder / "distributions.npz")
    z = (d["actions"] - d["mean"]) / d["std"]
    np.testing.assert_allclose(d["log_prob"], gaussian_log_prob(z, d["std"]), rtol=1e-12)
    np.testing.assert_allclose(d["entropy"], np.full(7, (0.5 * np.log(2 * np.pi * np.e) + np.log(d["std"])).sum()))
    ratio = (d["std"] / d["new_std"]) ** 2
    kl = 0.5 * (ratio - 1 - np.log(ratio) + ((d["mean"] - d["new_mean"]) / d["new_std"]) ** 2).sum(-1)
    np.testing.assert_allclose(d["kl"], kl, rtol=1e-12)
    latent = d["squashed_latent"]
    jacobian = np.log(1 - np.tanh(latent) ** 2 + d["squashed_epsilon"]).sum(-1)
    expected = gaussian_log_prob((latent - d["mean"]) / d["std"], d["std"]) - jacobian
    np.testing.assert_allclose(d["squashed_log_prob"], expected, rtol=1e-9)

    n = np.load(folder / "normalization.npz")
    for i in range(3):
        seen = np.concatenate([n[f"batch_{j}"] for j in range(i + 1)])
        assert n[f"count_{i}"] == len(seen)
        for key, value in (("mean", seen.mean(0)), ("var", seen.var(0)), ("std", seen.std(0))):
            np.testing.assert_allclose(n[f"{key}_{i}"], value, rtol=1e-10)
    np.testing.assert_allclose(n["outputs"], (n["inputs"] - n["mean_2"]) / (n["std_2"] + n["epsilon"]), rtol=1e-12)

    g = np.load(folder / "gae.npz")
    assert g["terminated"].any() and g["time_out_truncated"].any() and g["time_out_terminated"].any()
    for prefix in ("", "time_out_"):
        ends = (g[f"{prefix}terminated"], g[f"{prefix}truncated"])
        expected = gae(g["rewards"], g["values"], g["last_values"], *ends, g["gamma"], g["lam"])
        np.testing.assert_allclose(g[f"{prefix}advantages"], expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(g[f"{prefix}returns"], expected + g["values"], rtol=1e-10, atol=1e-12)


def check_update_file(path: Path) -> None:
    """Recompute one update file's rollout and first optimizer step; see that it exercises what it is there for."""
    _, optimizer, schedule, dtype = path.stem.split("_")
    u = np.load(path)
    rtol = 1e-10 if dtype == "float64" else 2e-4
    assert all(np.isfinite(u[key]).all() for key in u.files) and u["final_actor_kernel_0"].dtype == dtype
    z = (u["actions"] - u["old_mean"]) / u["old_std"]
    np.testing.assert_allclose(u["old_log_prob"], gaussian_log_prob(z, u["old_std"]), rtol=rtol)
    last = u["last_critic_observations"]
    for i in range(3):
        last = last @ u[f"critic_kernel_{i}"] + u[f"critic_bias_{i}"]
        last = np.where(last > 0, last, np.expm1(np.minimum(last, 0))) if i < 2 else last[:, 0]
    ends = (u["dones"], np.zeros_like(u["dones"]))
    advantages = gae(u["rewards"], u["values"], last, *ends, u["gamma"], u["lam"])
    np.testing.assert_allclose(u["returns"], advantages + u["values"], rtol=rtol, atol=rtol)
    normalised = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
    np.testing.assert_allclose(u["advantages"], normalised, rtol=rtol, atol=rtol)

    rate, clipped = u["mini_batch_rates"][0], {}
    for network in ("actor", "critic"):
        gradients = {key[5:]: u[key].astype(np.float64) for key in u.files if key.startswith(f"grad_{network}")}
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        np.testing.assert_allclose(u[f"mini_batch_{network}_grad_norm"][0], norm, rtol=rtol)
        clipped |= {key: gradient * min(1.0, 1.0 / (norm + 1e-6)) for key, gradient in gradients.items()}
    for key, gradient in clipped.items():
        start = u[key].astype(np.float64)
        expected = {
            "adam": start - rate * gradient / (np.abs(gradient) + 1e-8),
            "adamw": start * (1 - rate * 1e-2) - rate * gradient / (np.abs(gradient) + 1e-8),
            "sgd": start - rate * gradient,
            "rmsprop": start - rate * gradient / (0.1 * np.abs(gradient) + 1e-8),
        }[optimizer]
        np.testing.assert_allclose(u[f"first_{key}"], expected, rtol=rtol, atol=rtol * rate)

    for mean, values in (("surrogate", "surrogate"), ("value", "value"), ("entropy", "entropy"), ("kl", "kl")):
        np.testing.assert_allclose(u[f"mean_{mean}"], u[f"mini_batch_{values}"].mean(), rtol=rtol, atol=1e-12)
    norms = np.concatenate([u["mini_batch_actor_grad_norm"], u["mini_batch_critic_grad_norm"]])
    changes = np.diff(u["mini_batch_rates"])
    assert (norms > u["max_grad_norm"]).any() and (norms < u["max_grad_norm"]).any()
    assert u["mini_batch_kl"][0] < 1e-6 and u["mini_batch_rates"][0] == u["learning_rate"]
    if schedule == "fixed":
        assert not changes.any()
    else:
        assert (changes < 0).any() and (changes > 0).any()
        thresholds = np.log(u["mini_batch_kl"][1:, None] / (u["desired_kl"] * np.array([2.0, 0.5])))
        assert np.abs(thresholds).min() > 0.33


def check_all(folder: Path) -> None:
    """Check every file of the folder and their total size."""
    check_small_files(folder)
    updates = sorted(folder.glob("update_*.npz"))
    assert len(updates) == 16, f"expected 16 update files, found {len(updates)}"
    for path in updates:
        check_update_file(path)
    size = sum(path.stat().st_size for path in folder.glob("*.npz"))
    assert size < 1_500_000, f"the files hold {size} bytes, more than 1.5 MB"


if __name__ == "__main__":
    check_all(Path(__file__).parent)
