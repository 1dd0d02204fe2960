"""sbx as a side of the speed benchmark: Stable-Baselines3's loop on the host with updates compiled by JAX."""

import sys

import jax
import numpy as np
import sb3_worker as host
from protocol import serve, whole
from sbx import PPO, SAC
from sbx.common.type_aliases import ReplayBufferSamplesNp

BLOCK = 64  # updates in one compiled call, whose number is compiled in

host.PPO, host.SAC, host.OTHER = PPO, SAC, {}
ppo, sac = host.ppo, host.sac


class Updates:
    """Gradient steps in the compiled loop of the package, on batches that lie ready."""

    def __init__(self, sizes):
        self.model = host.sac(sizes, 0, host.Spaces(sizes))
        rng = np.random.default_rng(0)
        rows = BLOCK * sizes["batch_size"]
        draw = lambda *shape: rng.normal(size=(rows, *shape)).astype(np.float32)
        seen, action = (sizes["observation"],), (sizes["action"],)
        self.data = ReplayBufferSamplesNp(
            draw(*seen), np.tanh(draw(*action)), draw(*seen), np.zeros(rows, np.float32), draw(), np.full(rows, 0.99, np.float32)
        )  # fmt: skip

    def run(self, amount):
        model = self.model
        blocks = whole(amount, BLOCK)
        for _ in range(blocks):
            policy = model.policy
            policy.qf_state, policy.actor_state, model.ent_coef_state, model.key, _ = model._train(
                model.tau, model.target_entropy, BLOCK, self.data, model.policy_delay, 0, policy.qf_state,
                policy.actor_state, model.ent_coef_state, model.key,
            )  # fmt: skip
        jax.block_until_ready(model.policy.actor_state)
        return {"units": blocks * BLOCK}


if __name__ == "__main__":
    serve(host.parts(sys.modules[__name__]), ("sbx-rl", "stable-baselines3", "jax", "flax", "optax"))
