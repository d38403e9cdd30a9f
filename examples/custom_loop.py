"""Drive the training yourself: the train step is a pure function, and the loop around it is yours.

    train_step : TrainState -> (TrainState, metrics)

Everything is in the state: networks, optimizer, environments, random key. So it can be jitted, saved, replayed to the
bit, looped with `jax.lax.scan`, and vmapped over seeds. `rlbotics_jax.train` is such a loop, with logs and checkpoints.

    python examples/custom_loop.py                     # about a minute on two CPU cores
    python examples/custom_loop.py --iterations 5
"""

from __future__ import annotations

import jax
import tyro

from rlbotics_jax import load_config, make_algorithm, make_environment, make_train_step, vectorize
from rlbotics_jax.algorithms import hyperparameters_of
from rlbotics_jax.compilation import enable_compilation_cache, jit


def main(iterations: int = 100, seed: int = 0) -> None:
    """Trains CartpoleBalance in a loop of ten lines."""
    enable_compilation_cache()
    config = load_config("CartpoleBalance")
    environment = make_environment(config.env)
    algorithm = make_algorithm(config.runner, environment.num_actions)
    environments = vectorize(environment, config.env.num_envs)
    init, train_step = make_train_step(algorithm, environments, config.runner.num_steps_per_env)

    state = jit(init)(jax.random.key(seed), hyperparameters_of(config.runner.algorithm))
    train_step = jit(train_step, donate_argnums=0)
    for iteration in range(1, iterations + 1):
        state, metrics = train_step(state)
        if iteration % 10 == 0 or iteration == iterations:
            print(f"{iteration:4}  return {metrics['Episodes/mean_reward']:6.1f}  KL {metrics['Diagnostics/kl']:.4f}")

    act = algorithm.policy(algorithm.policy_parameters(state.shared.algorithm))
    print("Action in the first environment:", act(state.per_environment.observations)[0])


if __name__ == "__main__":
    tyro.cli(main)
