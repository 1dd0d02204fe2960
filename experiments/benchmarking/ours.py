"""Our own side of the speed benchmark: a worker like those of the peers, in a process of its own.

python -m experiments.benchmarking.ours      # then one JSON request a line, see experiments/benchmark_peers/protocol.py
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmark_peers.protocol import serve, whole
from experiments.configs import Evaluate, Train
from experiments.setup import Built, build
from jaxrl import agents
from jaxrl.agents import ppo, sac
from jaxrl.spaces import Box
from jaxrl.training import OffPolicy, OnPolicy
from jaxrl.types import PyTree, Transition


def ppo_config(sizes: dict, seeds: int = 1, seed: int = 0, env: str = "gymnax:CartPole-v1") -> Train:
    """PPO at the benchmark's sizes."""
    agent = ppo.Config(
        learning_rate=sizes["ppo_learning_rate"], epochs=sizes["epochs"], minibatches=sizes["minibatches"],
        entropy_coefficient=sizes["entropy"], hidden_sizes=tuple(sizes["ppo_hidden"]),
    )  # fmt: skip
    loop = OnPolicy(sizes["num_envs"], sizes["unroll"])
    steps = sizes["num_envs"] * sizes["unroll"] * sizes["loop_iterations"]
    return Train(agent, loop, env, steps, seeds=seeds, seed=seed, evaluate=Evaluate(episodes=sizes["episodes"]))


def sac_agent(sizes: dict) -> sac.Config:
    """SAC at the benchmark's sizes."""
    rate = sizes["sac_learning_rate"]
    return sac.Config(rate, rate, rate, hidden_sizes=tuple(sizes["sac_hidden"]))


def sac_config(sizes: dict, seeds: int = 1, seed: int = 0) -> Train:
    """SAC in Pendulum: one environment, an update a step."""
    loop = OffPolicy(batch_size=sizes["batch_size"], capacity=sizes["capacity"], warmup=sizes["warmup"])
    steps = sizes["capacity"]
    evaluate = Evaluate(episodes=sizes["episodes"])
    return Train(sac_agent(sizes), loop, "gymnax:Pendulum-v1", steps, seeds=seeds, seed=seed, evaluate=evaluate)


class Training:
    """One of our programs, with the verbs of a worker."""

    def __init__(self, config: Callable[..., Train], sizes: dict, seeds: int = 1) -> None:
        self.config, self.sizes, self.seeds = config, sizes, seeds
        self.built: Built | None = None

    def start(self, seeds: int, seed: int = 0) -> None:
        """A fresh run of one seed or many, through its warm-up."""
        self.built = build(self.config(self.sizes, seeds, seed))
        self.state, self.at = jax.block_until_ready(self.built.program.init()), 0
        if warmup := self.built.program.warmup_iterations:
            self.go(warmup)

    def go(self, iterations: int) -> None:
        assert self.built is not None
        self.state, chunk = self.built.program.advance(self.state, self.at, iterations)
        jax.block_until_ready((self.state, chunk))
        self.at += iterations

    def run(self, amount: float) -> dict:
        if self.built is None:
            self.start(self.seeds)
        assert self.built is not None
        each = self.built.program.steps_per_iteration * self.seeds
        count = whole(amount, each)
        self.go(count)
        return {"units": count * each}

    def compile(self) -> dict:
        """First calls of start, training and evaluation, over what second calls take; no training step is run."""
        jax.clear_caches()
        program = build(self.config(self.sizes)).program
        clocks: list[tuple[float, float]] = []
        for _ in range(2):
            worked = time.process_time()
            seconds = timed(lambda: passed(program))
            clocks.append((seconds, time.process_time() - worked))
        (first, worked_first), (second, worked_second) = clocks
        return {"seconds": first - second, "cpu": worked_first - worked_second}

    def begin(self, seed: int, seeds: int) -> None:
        jax.clear_caches()
        self.start(seeds, seed)

    def advance(self, units: float) -> dict:
        assert self.built is not None
        self.go(whole(units, self.built.program.steps_per_iteration))
        episodes = jax.device_get(self.built.program.evaluate(self.state, self.at))
        return {"returns": np.atleast_1d(episodes.returns.mean(-1)).tolist()}


class Updates:
    """Gradient steps of SAC on batches that lie ready."""

    def __init__(self, sizes: dict) -> None:
        self.program, self.carry = sac_updates(sizes)

    def run(self, amount: float) -> dict:
        self.carry = jax.block_until_ready(self.program(self.carry, int(amount)))
        return {"units": int(amount)}


def sac_updates(sizes: dict) -> tuple[Callable[[PyTree, int], PyTree], PyTree]:
    """A donated loop of any number of gradient steps, and what it starts from."""
    observation = Box(-np.inf, np.inf, (sizes["observation"],))
    action = Box(-1.0, 1.0, (sizes["action"],))
    agent = agents.make_agent(sac_agent(sizes), observation, action)
    lead = (sizes["pool"], sizes["batch_size"])
    keys = jax.random.split(jax.random.key(1), 4)
    pool = Transition(
        observation=jax.random.normal(keys[0], (*lead, sizes["observation"])),
        action=jnp.tanh(jax.random.normal(keys[1], (*lead, sizes["action"]))),
        reward=jax.random.normal(keys[2], lead),
        discount=jnp.full(lead, 0.99),
        next_observation=jax.random.normal(keys[3], (*lead, sizes["observation"])),
        weight=jnp.ones(lead),
    )

    def one(i: Any, carry: tuple) -> tuple:
        state, pool, key = carry
        batch = jax.tree.map(lambda x: x[i % sizes["pool"]], pool)
        return agent.update(state, batch, jax.random.fold_in(key, i))[0], pool, key

    program = jax.jit(lambda carry, count: jax.lax.fori_loop(0, count, one, carry), donate_argnums=0)
    return program, (agent.init(jax.random.key(0)), pool, jax.random.key(2))


def passed(program: Any) -> None:
    """Start, no iteration at all, and an evaluation."""
    state, _ = program.advance(program.init(), 0, 0)
    jax.block_until_ready(program.evaluate(state, 0))


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call, which waits for its own result."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


PARTS: dict[str, Callable[[dict], Any]] = {
    "ppo": lambda sizes: Training(ppo_config, sizes),
    "ppo_seeds": lambda sizes: Training(ppo_config, sizes, sizes["seeds"]),
    "sac": lambda sizes: Training(sac_config, sizes),
    "sac_updates": Updates,
}

if __name__ == "__main__":
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as in every script
    serve(PARTS, ("jaxrl", "jax", "flax", "optax", "gymnax"))
