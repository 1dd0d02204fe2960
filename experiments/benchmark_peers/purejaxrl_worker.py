"""PureJaxRL, from a checkout, as a side of the speed benchmark. Its program is a whole training of a fixed length."""

import sys
import time

import jax
import numpy as np
from protocol import serve, whole

sys.path.insert(0, sys.argv[1])
from purejaxrl.ppo import make_train

ITERATIONS = 20  # of the program that is timed for its speed


class Training:
    """PPO as one run or as a population. It judges nothing but the episodes it trained on."""

    def __init__(self, sizes, seeds=1):
        self.sizes, self.seeds, self.program = sizes, seeds, None
        self.per_iteration = sizes["num_envs"] * sizes["unroll"]

    def make(self, iterations, seeds):
        sizes = self.sizes
        train = make_train(
            {
                "LR": sizes["ppo_learning_rate"], "NUM_ENVS": sizes["num_envs"], "NUM_STEPS": sizes["unroll"],
                "TOTAL_TIMESTEPS": iterations * self.per_iteration, "UPDATE_EPOCHS": sizes["epochs"],
                "NUM_MINIBATCHES": sizes["minibatches"], "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2,
                "ENT_COEF": sizes["entropy"], "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh",
                "ENV_NAME": "CartPole-v1", "ANNEAL_LR": False,
            }
        )  # fmt: skip
        return jax.jit(jax.vmap(train) if seeds > 1 else train)

    def keys(self, seed, seeds):
        key = jax.random.PRNGKey(seed)
        return jax.random.split(key, seeds) if seeds > 1 else key

    def run(self, amount):
        self.program = self.program or self.make(ITERATIONS, self.seeds)
        block = ITERATIONS * self.per_iteration * self.seeds
        count = whole(amount, block)
        for i in range(count):
            jax.block_until_ready(self.program(self.keys(i, self.seeds)))
        return {"units": count * block}

    def compile(self):
        jax.clear_caches()
        self.make(ITERATIONS, 1).lower(self.keys(0, 1)).compile()

    def begin(self, seed, seeds):
        """Everything is trained at once; what follows deals the time out evenly."""
        jax.clear_caches()
        iterations = self.sizes["ppo_budget"]
        keys = self.keys(seed, seeds)
        began = time.perf_counter()
        program = self.make(iterations, seeds).lower(keys).compile()
        compiled = time.perf_counter() - began
        metrics = jax.device_get(jax.block_until_ready(program(keys))["metrics"])
        self.each = (time.perf_counter() - began - compiled) / iterations
        ended = metrics["returned_episode"].reshape(seeds, iterations, -1)
        values = metrics["returned_episode_returns"].reshape(seeds, iterations, -1)
        self.curve = np.where(ended, values, 0).sum(-1) / np.maximum(ended.sum(-1), 1)
        self.at = 0
        return {"seconds": compiled}

    def advance(self, units):
        count = whole(units, self.per_iteration)
        self.at = min(self.at + count, self.curve.shape[1])
        return {"returns": self.curve[:, self.at - 1].tolist(), "seconds": count * self.each}


PARTS = {"ppo": Training, "ppo_seeds": lambda sizes: Training(sizes, sizes["seeds"])}

if __name__ == "__main__":
    serve(PARTS, ("jax", "flax", "optax", "distrax", "gymnax"))
