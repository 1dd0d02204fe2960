"""Where the time of a training goes, and the least it could be: parts compiled and timed alone, beside two bounds.

A part's bound is the longer of its FLOPs over the measured rate of a large matrix product and its bytes over the measured
rate of a copy, both float32, on this machine and in the same run; FLOPs and bytes are the compiler's own count.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from rich.console import Console
from rich.table import Table

from environments import wrappers
from experiments.benchmarking.alone import best_of
from experiments.benchmarking.ours import ppo_config, sac_config
from experiments.setup import Built, build
from jaxrl import samplers
from jaxrl.agents import common, ppo, sac
from jaxrl.training.loop import collect
from jaxrl.types import Experience, PyTree, Transition

SIDE = 1024  # of the square matrices whose product is timed
COPIED = 2**24  # float32 numbers
TURNS = 200  # of a part's loop in one timed call


class Rates(NamedTuple):
    """What the machine can do."""

    flops: float  # a second
    bytes: float  # a second, read and written


class Cost(NamedTuple):
    """One part, once."""

    seconds: float
    flops: float
    bytes: float

    def times(self, count: float) -> "Cost":
        return Cost(self.seconds * count, self.flops * count, self.bytes * count)

    def less(self, other: "Cost") -> "Cost":
        return Cost(*(max(0.0, a - b) for a, b in zip(self, other, strict=True)))

    def bound(self, rates: Rates) -> float:
        return max(self.flops / rates.flops, self.bytes / rates.bytes)


def measure_rates(seconds: float) -> Rates:
    """The rates of a large product, and of a copy of whichever size is fastest, so that no cache beats the bound."""
    matrix = jax.random.normal(jax.random.key(0), (SIDE, SIDE))
    product = jax.jit(lambda x: jax.lax.fori_loop(0, 4, lambda _, y: (x @ y) * 1e-2, x))
    copy = jax.jit(lambda x, count: jax.lax.fori_loop(0, count, lambda _, y: y + 1, x), static_argnums=1)
    flops = 4 * 2 * SIDE**3 / waited(partial(product, matrix), seconds)
    counts = {size: COPIED // size for size in (2**14, 2**17, 2**20, COPIED)}
    copies = [waited(partial(copy, jnp.ones(size), count), seconds / 4) for size, count in counts.items()]
    return Rates(flops, 2 * 4 * COPIED / min(copies))


def waited(call: Callable[[], Any], seconds: float) -> float:
    """The shortest of many calls, after one that compiles."""
    jax.block_until_ready(call())
    return best_of(lambda: jax.block_until_ready(call()), seconds)


def cost(body: Callable[[Any, PyTree], PyTree], carry: PyTree, seconds: float) -> Cost:
    """What one turn of ``carry = body(i, carry)`` takes; the carry must need everything that is to be computed."""
    program = jax.jit(lambda carry, count: jax.lax.fori_loop(0, count, body, carry))
    jax.block_until_ready(program(carry, 1))

    def call(count: int) -> None:
        jax.block_until_ready(program(carry, count))

    count = 1
    while best_of(partial(call, count), 0) < seconds / 10 and count < 2**20:
        count *= 4
    took = best_of(partial(call, count), seconds) / count
    counted = jax.jit(body).lower(jnp.int32(0), carry).compile().cost_analysis() or {}
    return Cost(took, counted.get("flops", 0.0), counted.get("bytes accessed", 0.0))


def started(built: Built) -> PyTree:
    """A state that has learnt a little."""
    program = built.program
    state, _ = program.advance(program.init(), 0, program.warmup_iterations + 2)
    return jax.block_until_ready(state)


def environment_and_acting(built: Built, env: Any, state: PyTree, seconds: float) -> dict[str, Cost]:
    """One step of every environment, and one choice of actions."""
    action = built.agent.act(state.agent, state.observation, jax.random.key(0), True)

    def step(i: Any, carry: PyTree) -> PyTree:
        env_state, _ = env.step(carry[0], action, jax.random.fold_in(jax.random.key(1), i))
        return env_state, carry[1]

    def act(i: Any, total: Any) -> Any:
        chosen = built.agent.act(
            state.agent, state.observation + i * 1e-9, jax.random.fold_in(jax.random.key(1), i), True
        )
        return total + jnp.sum(chosen.astype(jnp.float32))

    return {
        "environment": cost(step, (state.env, jnp.float32(0)), seconds),
        "acting": cost(act, jnp.float32(0), seconds),
    }


def ppo_parts(sizes: dict, seconds: float) -> dict[str, Cost]:
    """One iteration of PPO, in parts."""
    built = build(ppo_config(sizes))
    state, env = started(built), vector(built)
    parts: ppo.Parts = built.agent.update.args[0]  # type: ignore[attr-defined]
    gather = jax.jit(
        partial(collect, env, lambda o, k: built.agent.act(state.agent, o, k, True), length=built.loop.unroll)
    )
    block = gather(env_state=state.env, observation=state.observation, key=jax.random.key(2))[2]
    batch, _ = jax.jit(partial(ppo.prepare, parts))(state.agent, block)
    size, count = batch.log_prob.shape[0], sizes["epochs"] * sizes["minibatches"]
    order = common.shuffled(jax.random.key(3), size).reshape(sizes["minibatches"], -1)
    hyper, learned = state.agent.hyper, (state.agent.params, state.agent.optimizer_state)

    def forward(i: Any, total: Any) -> Any:
        rows = jax.tree.map(lambda x: x[order[i % len(order)]], batch)
        return total + ppo.total_loss(learned[0], parts, hyper, rows, jax.random.key(0))[0]

    def both(i: Any, total: PyTree) -> PyTree:
        grads, _ = ppo.minibatch_gradient(parts, hyper, batch, learned[0], order[i % len(order)], jax.random.key(0))
        return jax.tree.map(jnp.add, total, grads)

    def descend(i: Any, carry: PyTree) -> PyTree:
        return common.descend(parts.optimizer(hyper.learning_rate), learned[0], carry[1], carry[0])

    def prepare(i: Any, total: Any) -> Any:
        moved = jax.tree.map(lambda x: x + i * 1e-6, (block.observation, block.next_observation))
        shifted = block._replace(observation=moved[0], next_observation=moved[1])
        made, _ = ppo.prepare(parts, state.agent, shifted)
        return total + jnp.sum(made.advantage) + jnp.sum(made.target) + jnp.sum(made.log_prob)

    def shuffle(i: Any, total: Any) -> Any:
        return total + common.shuffled(jax.random.fold_in(jax.random.key(0), i), size)

    found = {
        name: each.times(built.loop.unroll) for name, each in environment_and_acting(built, env, state, seconds).items()
    }
    found["advantages and values"] = cost(prepare, jnp.float32(0), seconds)
    found["shuffling"] = cost(shuffle, jnp.zeros(size, jnp.int32), seconds).times(sizes["epochs"])
    ahead = cost(forward, jnp.float32(0), seconds).times(count)
    found["forward"] = ahead
    zeros = jax.tree.map(jnp.zeros_like, learned[0])
    found["backward"] = cost(both, zeros, seconds).times(count).less(ahead)
    found["optimiser"] = cost(descend, learned, seconds).times(count)
    return found | whole(built, state, found, seconds)


def sac_parts(sizes: dict, seconds: float) -> dict[str, Cost]:
    """One step of SAC with its update, in parts."""
    built = build(sac_config(sizes))
    state, env = started(built), vector(built)
    parts: sac.Parts = built.agent.update.args[0]  # type: ignore[attr-defined]
    agent = state.agent
    keys = jax.random.split(jax.random.key(3), 3)
    size = sizes["batch_size"]
    seen = jax.random.normal(keys[0], (size, *state.observation.shape[1:]))
    batch = Transition(seen, jnp.tanh(seen[:, :1]), seen[:, 0], jnp.full(size, 0.99), seen + 0.1, jnp.ones(size))

    def shifted(i: Any) -> Transition:
        return batch._replace(observation=seen + i * 1e-6, next_observation=seen - i * 1e-6)

    def forward(i: Any, total: Any) -> Any:
        rows = shifted(i)
        target = sac.critic_target(agent.params, agent.target_params, parts, rows, jax.random.key(0))
        critic, _ = sac.critic_loss(agent.params["critic"], parts, rows, target)
        actor, _ = sac.actor_loss(agent.params["actor"], agent.params, parts, rows, jax.random.key(1))
        return total + critic + actor

    def both(i: Any, total: PyTree) -> PyTree:
        rows = shifted(i)
        target = sac.critic_target(agent.params, agent.target_params, parts, rows, jax.random.key(0))
        critic, _ = jax.grad(sac.critic_loss, has_aux=True)(agent.params["critic"], parts, rows, target)
        actor, _ = jax.grad(sac.actor_loss, has_aux=True)(
            agent.params["actor"], agent.params, parts, rows, jax.random.key(1)
        )
        return jax.tree.map(jnp.add, total, (critic, actor))

    def descend(i: Any, carry: PyTree) -> PyTree:
        for part in agent.params:
            carry = sac.descend(parts, carry, part, agent.params[part])
        moved = optax.incremental_update(carry.params["critic"], carry.target_params["critic"], carry.hyper.tau)
        return carry._replace(target_params={"critic": moved})

    found = environment_and_acting(built, env, state, seconds)
    found["replay"] = replay_cost(sizes, seconds)
    ahead = cost(forward, jnp.float32(0), seconds)
    found["forward"] = ahead
    zeros = jax.tree.map(jnp.zeros_like, (agent.params["critic"], agent.params["actor"]))
    found["backward"] = cost(both, zeros, seconds).less(ahead)
    found["optimiser"] = cost(descend, agent, seconds)
    return found | whole(built, state, found, seconds)


def replay_cost(sizes: dict, seconds: float) -> Cost:
    """One row added and one batch drawn, of Pendulum's sizes."""
    no = jnp.zeros((), bool)
    example = Experience(jnp.zeros(3), jnp.zeros(1), jnp.zeros(()), no, no, jnp.zeros(3))
    sampler = samplers.uniform()
    row = jax.tree.map(lambda x: x[None, None], example)
    storage = sampler.add(sampler.init(example, sizes["capacity"], 1), row)

    def one(i: Any, carry: PyTree) -> PyTree:
        storage, total = carry
        storage = sampler.add(storage, row)
        drawn, _ = sampler.sample(storage, jax.random.fold_in(jax.random.key(0), i), sizes["batch_size"])
        return storage, total + sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(drawn))

    # The compiler counts the whole storage as bytes of an update in place; what moves is a row and a batch.
    moved = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(example)) * (2 + 2 * sizes["batch_size"])
    return cost(one, (storage, jnp.float32(0)), seconds)._replace(bytes=float(moved))


def whole(built: Built, state: PyTree, found: dict[str, Cost], seconds: float) -> dict[str, Cost]:
    """The iteration itself, and what of it is none of its parts."""
    program, held, first = built.program, [state], built.program.warmup_iterations + 2
    count = TURNS if built.loop.steps_per_iteration == 1 else 4

    def call() -> None:
        held[0], _ = jax.block_until_ready(program.advance(held[0], first, count))

    call()
    total = Cost(
        best_of(call, seconds) / count, sum(c.flops for c in found.values()), sum(c.bytes for c in found.values())
    )
    loop = total.seconds - sum(c.seconds for c in found.values())
    return {"loop and the rest": Cost(max(0.0, loop), 0.0, 0.0), "one iteration": total}


def vector(built: Built) -> Any:
    """The environment as the program steps it."""
    return wrappers.vectorise(built.env, built.loop.num_envs)


def table(title: str, found: dict[str, Cost], rates: Rates) -> Table:
    """Part by part: time, share, FLOPs, bytes, bound, and how much of the time the bound is."""
    made = Table("part", "µs", "share", "MFLOP", "MB", "bound [µs]", "bound / time", title=title, title_justify="left")
    total = found["one iteration"].seconds
    for name, of in found.items():
        bound = of.bound(rates)
        share = f"{bound / of.seconds:.0%}" if of.seconds and bound else ""
        made.add_row(
            name, f"{1e6 * of.seconds:,.0f}", f"{of.seconds / total:.0%}", f"{of.flops / 1e6:,.2f}",
            f"{of.bytes / 1e6:,.2f}", f"{1e6 * bound:,.0f}", share,
        )  # fmt: skip
    return made


def show(sizes: dict, folder: Path, seconds: float, console: Console) -> int:
    """Both tables, and a trace of a few iterations of each for xprof."""
    rates = measure_rates(seconds)
    console.print(
        f"  product of {SIDE} × {SIDE}: {rates.flops / 1e9:,.1f} GFLOP/s; copy: {rates.bytes / 1e9:,.1f} GB/s",
        markup=False,
    )
    each = seconds / 4
    console.print(table("PPO CartPole: one iteration", ppo_parts(sizes, each), rates))
    console.print(table("SAC Pendulum: one step and update", sac_parts(sizes, each), rates))
    for name, config in (("ppo", ppo_config), ("sac", sac_config)):
        built = build(config(sizes))
        state = started(built)
        first = built.program.warmup_iterations + 2
        with jax.profiler.trace(folder / f"trace_{name}"):
            jax.block_until_ready(built.program.advance(state, first, 20 if name == "sac" else 2))
    console.print(
        f"  traces     {folder}/trace_ppo, {folder}/trace_sac (xprof reads them)", markup=False, soft_wrap=True
    )
    return 0


if __name__ == "__main__":
    raise SystemExit("uv run python -m experiments.benchmark --profile True")
