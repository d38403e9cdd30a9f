"""States on several devices: spread and gathered again, to the bit."""

from __future__ import annotations

import pytest
from helpers import assert_bit_equal, small_config, small_step
from toys import ActionReward

from rlbotics_jax.parallel import gather_from_devices, spread_over_devices


def test_spread_and_gathered_is_the_same():
    init, _ = small_step(ActionReward(), small_config())
    state = init(0)
    spread = spread_over_devices(state, 4)
    assert spread.per_environment.episode_return.shape == (4, 4)
    assert spread.shared.iteration.shape == (4,)
    assert_bit_equal(gather_from_devices(spread), state)


def test_environments_must_divide():
    init, _ = small_step(ActionReward(), small_config())
    with pytest.raises(ValueError, match="16 environments do not divide by 3 devices"):
        spread_over_devices(init(0), 3)
