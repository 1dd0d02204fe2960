"""Brax's SAC trainer as a side of the speed benchmark.

The trainer is one call that ends with the training. It runs in a thread and is held where it reports, so that it takes turns
with others; the speed is the one it reports for each of its epochs, without its evaluation.
"""

import threading

import jax
import jax.numpy as jnp
from brax.envs.base import Env, State
from brax.training.agents.sac import networks
from brax.training.agents.sac import train as sac
from protocol import serve, whole

EPOCH = 200  # steps between reports, which the trainer compiles in
UPDATES = 64  # a step, where updates alone are asked for


class Pendulum(Env):
    """Gymnasium's Pendulum-v1; the trainer's own wrapper counts 200 steps."""

    observation_size, action_size, backend = 3, 1, "none"

    def reset(self, rng):
        angle, speed = jax.random.uniform(rng, (2,), minval=jnp.array([-jnp.pi, -1.0]), maxval=jnp.array([jnp.pi, 1.0]))
        return State(jnp.stack([angle, speed]), self.see(angle, speed), jnp.float32(0), jnp.float32(0))

    def step(self, state, action):
        angle, speed = state.pipeline_state
        torque = 2.0 * jnp.clip(action[0], -1.0, 1.0)
        wrapped = (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
        reward = -(wrapped**2 + 0.1 * speed**2 + 0.001 * torque**2)
        speed = jnp.clip(speed + (15.0 * jnp.sin(angle) + 3.0 * torque) * 0.05, -8.0, 8.0)
        angle = angle + speed * 0.05
        return state.replace(pipeline_state=jnp.stack([angle, speed]), obs=self.see(angle, speed), reward=reward)

    def see(self, angle, speed):
        return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed])


class Spaces(Env):
    """Spaces without a world: only shapes matter to the updates."""

    backend = "none"
    observation_size = property(lambda self: self.sizes["observation"])
    action_size = property(lambda self: self.sizes["action"])

    def __init__(self, sizes):
        self.sizes = sizes

    def reset(self, rng):
        return State(rng, jax.random.normal(rng, (self.observation_size,)), jnp.float32(0), jnp.float32(0))

    def step(self, state, action):
        return state.replace(reward=action[0])


class Trainer:
    """One call of the trainer, held at each report."""

    def __init__(self, environment, sizes, seed, updates=1, epoch=EPOCH):
        self.go, self.told = threading.Semaphore(0), threading.Semaphore(0)
        self.metrics, self.error = {}, None
        arguments = dict(
            environment=environment, num_timesteps=sizes["warmup"] + epoch * 100_000, episode_length=200, num_envs=1,
            num_eval_envs=sizes["episodes"], learning_rate=sizes["sac_learning_rate"], discounting=0.99, seed=seed,
            batch_size=sizes["batch_size"], num_evals=100_001, tau=0.005, min_replay_size=sizes["warmup"],
            max_replay_size=sizes["capacity"], grad_updates_per_step=updates, deterministic_eval=True,
            progress_fn=self.report,
            network_factory=lambda *a, **k: networks.make_sac_networks(*a, hidden_layer_sizes=sizes["sac_hidden"], **k),
        )  # fmt: skip
        threading.Thread(target=self.train, args=(arguments,), daemon=True).start()

    def train(self, arguments):
        try:
            sac.train(**arguments)
        except Exception as error:
            self.error = error
            self.told.release()

    def report(self, step, metrics):
        self.metrics = metrics
        self.told.release()
        self.go.acquire()

    def wait(self):
        self.told.acquire()
        if self.error:
            raise self.error

    def epoch(self):
        self.go.release()
        self.wait()
        return self.metrics


class Training:
    """SAC in Pendulum, or its updates alone."""

    def __init__(self, sizes, environment, updates=1, epoch=EPOCH):
        self.sizes, self.environment, self.updates, self.steps = sizes, environment, updates, epoch
        self.trainers = []

    def run(self, amount):
        if not self.trainers:
            self.begin(0, 1)
        block = self.steps * self.updates
        speeds = [float(self.trainers[0].epoch()["training/sps"]) for _ in range(whole(amount, block))]
        return {"units": block * len(speeds), "seconds": sum(self.steps / speed for speed in speeds)}

    def begin(self, seed, seeds):
        self.trainers = [
            Trainer(self.environment, self.sizes, seed + i, self.updates, self.steps) for i in range(seeds)
        ]
        for trainer in self.trainers:
            trainer.wait()  # its evaluation before training

    def advance(self, units):
        returns = []
        for trainer in self.trainers:
            for _ in range(whole(units, self.steps)):
                metrics = trainer.epoch()
            returns.append(float(metrics["eval/episode_reward"]))
        return {"returns": returns}


PARTS = {
    "sac": lambda sizes: Training(sizes, Pendulum()),
    "sac_updates": lambda sizes: Training(sizes, Spaces(sizes), UPDATES, 4),
}

if __name__ == "__main__":
    serve(PARTS, ("brax", "jax", "flax", "optax"))
