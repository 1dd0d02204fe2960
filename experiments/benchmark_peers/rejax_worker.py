"""rejax as a side of the speed benchmark. Its own ``train_iteration`` runs in a loop whose length is not compiled in."""

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import environment, spaces
from protocol import serve, whole
from rejax import PPO, SAC
from rejax.buffers import Minibatch
from rejax.evaluate import evaluate


class Training:
    """One algorithm in one environment, as one run or as a population."""

    def __init__(self, algorithm, per_iteration: int, seeds: int, episodes: int, warmup: int = 0):
        self.algorithm, self.per_iteration, self.seeds, self.warmup = algorithm, per_iteration, seeds, warmup
        self.episodes, self.state = episodes, None

    def programs(self, seeds: int):
        algorithm = self.algorithm

        def advance(state, count):
            return jax.lax.fori_loop(0, count, lambda _, state: algorithm.train_iteration(state), state)

        def judge(state, key):
            limit = algorithm.env_params.max_steps_in_episode
            act = algorithm.make_act(state)
            return evaluate(act, key, algorithm.env, algorithm.env_params, self.episodes, limit)[1].mean()

        lift = jax.vmap if seeds > 1 else lambda f, **_: f
        self.init = jax.jit(lift(algorithm.init_state))
        self.advance_by = jax.jit(lift(advance, in_axes=(0, None)), donate_argnums=0)
        self.judge = jax.jit(lift(judge))

    def keys(self, seed: int, seeds: int):
        key = jax.random.PRNGKey(seed)
        return jax.random.split(key, seeds) if seeds > 1 else key

    def run(self, amount):
        if self.state is None:
            self.programs(self.seeds)
            self.state = self.advance_by(fresh(self.init(self.keys(0, self.seeds))), self.warmup)
        count = whole(amount, self.per_iteration * self.seeds)
        self.state = jax.block_until_ready(self.advance_by(self.state, count))
        return {"units": count * self.per_iteration * self.seeds}

    def compile(self):
        jax.clear_caches()
        jax.jit(self.algorithm.train).lower(jax.random.PRNGKey(0)).compile()

    def begin(self, seed, seeds):
        jax.clear_caches()
        self.programs(seeds)
        self.state, self.keys_of_judge = fresh(self.init(self.keys(seed, seeds))), self.keys(seed + 1000, seeds)
        if self.warmup:
            self.state = jax.block_until_ready(self.advance_by(self.state, self.warmup))

    def advance(self, units):
        self.state = self.advance_by(self.state, whole(units, self.per_iteration))
        return {"returns": np.atleast_1d(self.judge(self.state, self.keys_of_judge)).tolist()}


class Updates:
    """Gradient steps of SAC on batches that lie ready, with the step of the targets."""

    def __init__(self, sizes):
        self.algorithm = sac(sizes, env=Spaces(sizes), env_params=environment.EnvParams())
        self.state = None
        shapes = {
            "obs": (sizes["observation"],),
            "action": (sizes["action"],),
            "reward": (),
            "next_obs": (sizes["observation"],),
        }
        keys = jax.random.split(jax.random.PRNGKey(1), len(shapes))
        lead = (sizes["pool"], sizes["batch_size"])
        arrays = {n: jax.random.normal(k, (*lead, *s)) for k, (n, s) in zip(keys, shapes.items(), strict=True)}
        arrays["action"] = jnp.tanh(arrays["action"])
        self.pool, self.size = Minibatch(**arrays, done=jnp.zeros(lead, bool)), sizes["pool"]

    def run(self, amount):
        if self.state is None:
            algorithm, size = self.algorithm, self.size

            def one(i, carry):
                state, pool = carry
                state = algorithm.update(state, jax.tree.map(lambda x: x[i % size], pool))
                moved = algorithm.maybe_update_target_params(
                    state.critic_ts.params, state.critic_target_params, i + 1, i
                )
                return state.replace(critic_target_params=moved), pool

            self.program = jax.jit(
                lambda state, pool, n: jax.lax.fori_loop(0, n, one, (state, pool))[0], donate_argnums=0
            )
            self.state = fresh(jax.jit(algorithm.init_state)(jax.random.PRNGKey(0)))
        self.state = jax.block_until_ready(self.program(self.state, self.pool, int(amount)))
        return {"units": int(amount)}


class Spaces(environment.Environment):
    """Spaces without a world: only shapes matter to the updates."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes

    @property
    def default_params(self):
        return environment.EnvParams()

    def reset_env(self, key, params):
        return jnp.zeros(self.sizes["observation"]), environment.EnvState(0)

    def step_env(self, key, state, action, params):
        return jnp.zeros(self.sizes["observation"]), state, jnp.float32(0), jnp.bool_(False), {}

    def observation_space(self, params):
        return spaces.Box(-jnp.inf, jnp.inf, (self.sizes["observation"],), jnp.float32)

    def action_space(self, params=None):
        return spaces.Box(-1.0, 1.0, (self.sizes["action"],), jnp.float32)


def fresh(state):
    """The state with a buffer of its own for every leaf, as donation needs."""
    return jax.tree.map(jnp.copy, state)


def ppo(sizes):
    per_iteration = sizes["num_envs"] * sizes["unroll"]
    return PPO.create(
        env="CartPole-v1", num_envs=sizes["num_envs"], num_steps=sizes["unroll"], num_epochs=sizes["epochs"],
        num_minibatches=sizes["minibatches"], learning_rate=sizes["ppo_learning_rate"], max_grad_norm=0.5, gamma=0.99,
        gae_lambda=0.95, clip_eps=0.2, vf_coef=0.5, ent_coef=sizes["entropy"], total_timesteps=per_iteration,
        eval_freq=per_iteration, agent_kwargs={"activation": "tanh", "hidden_layer_sizes": tuple(sizes["ppo_hidden"])},
    )  # fmt: skip


def sac(sizes, **env):
    return SAC.create(
        **(env or {"env": "Pendulum-v1"}), num_envs=1, batch_size=sizes["batch_size"], buffer_size=sizes["capacity"],
        fill_buffer=sizes["warmup"], learning_rate=sizes["sac_learning_rate"], gamma=0.99, polyak=0.995,
        hidden_layer_sizes=tuple(sizes["sac_hidden"]), total_timesteps=sizes["warmup"], eval_freq=sizes["warmup"],
    )  # fmt: skip


def ppo_training(sizes, seeds=1):
    return Training(ppo(sizes), sizes["num_envs"] * sizes["unroll"], seeds, sizes["episodes"])


PARTS = {
    "ppo": ppo_training,
    "ppo_seeds": lambda sizes: ppo_training(sizes, sizes["seeds"]),
    "sac": lambda sizes: Training(sac(sizes), 1, 1, sizes["episodes"], sizes["warmup"]),
    "sac_updates": Updates,
}

if __name__ == "__main__":
    serve(PARTS, ("rejax", "jax", "flax", "optax", "gymnax"))
