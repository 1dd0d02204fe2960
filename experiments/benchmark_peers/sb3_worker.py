"""Stable-Baselines3 as a side of the speed benchmark, on the CPU."""

import sys
import types

import gymnasium
import numpy as np
from protocol import serve
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure

OTHER = {"device": "cpu"}


class Training:
    """One algorithm of this package; seeds are trained one after another."""

    def __init__(self, make, environment, episodes, warmup=0):
        self.make, self.environment, self.episodes, self.warmup = make, environment, episodes, warmup
        self.models = []

    def run(self, amount):
        if not self.models:
            self.models = [self.make(0)]
            self.models[0].learn(max(1, self.warmup + 2))
        before = self.models[0].num_timesteps
        self.models[0].learn(int(amount), reset_num_timesteps=False)
        return {"units": self.models[0].num_timesteps - before}

    def begin(self, seed, seeds):
        self.models = [self.make(seed + i) for i in range(seeds)]
        for model in self.models:
            if self.warmup:
                model.learn(self.warmup)

    def advance(self, units):
        returns = []
        for model in self.models:
            model.learn(int(units), reset_num_timesteps=False)
            judged = make_vec_env(self.environment, n_envs=min(self.episodes, 8))
            returns.append(float(evaluate_policy(model, judged, n_eval_episodes=self.episodes)[0]))
        return {"returns": returns}


class Spaces(gymnasium.Env):
    """Spaces without a world: only shapes matter to the updates."""

    def __init__(self, sizes):
        self.shape = (sizes["observation"],)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self.shape, np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (sizes["action"],), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.shape, np.float32), {}

    def step(self, action):
        observation = self.np_random.normal(size=self.shape).astype(np.float32)
        return observation, float(observation[0]), False, False, {}


class Updates:
    """Gradient steps of SAC; each draws its batch from the buffer, which cannot be parted from it."""

    def __init__(self, sizes):
        self.sizes, self.model = sizes, sac(sizes, 0, Spaces(sizes))
        self.model.learn(sizes["warmup"])
        self.model.set_logger(configure(None, []))

    def run(self, amount):
        self.model.train(gradient_steps=int(amount), batch_size=self.sizes["batch_size"])
        return {"units": int(amount)}


def ppo(sizes, seed):
    hidden = list(sizes["ppo_hidden"])
    return PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", n_envs=sizes["num_envs"]), n_steps=sizes["unroll"],
        batch_size=sizes["num_envs"] * sizes["unroll"] // sizes["minibatches"], n_epochs=sizes["epochs"],
        learning_rate=sizes["ppo_learning_rate"], ent_coef=sizes["entropy"], gamma=0.99, gae_lambda=0.95, clip_range=0.2,
        vf_coef=0.5, max_grad_norm=0.5, seed=seed, policy_kwargs={"net_arch": {"pi": hidden, "vf": hidden}}, **OTHER,
    )  # fmt: skip


def sac(sizes, seed, environment="Pendulum-v1"):
    return SAC(
        "MlpPolicy", environment, batch_size=sizes["batch_size"], buffer_size=sizes["capacity"],
        learning_starts=sizes["warmup"], learning_rate=sizes["sac_learning_rate"], gamma=0.99, tau=0.005, train_freq=1,
        gradient_steps=1, seed=seed, policy_kwargs={"net_arch": list(sizes["sac_hidden"])}, **OTHER,
    )  # fmt: skip


def parts(own: types.ModuleType):
    """The parts, with the algorithms of a module that has them: this one, or that of sbx."""
    return {
        "ppo": lambda s: Training(lambda seed: own.ppo(s, seed), "CartPole-v1", s["episodes"]),
        "sac": lambda s: Training(lambda seed: own.sac(s, seed), "Pendulum-v1", s["episodes"], s["warmup"]),
        "sac_updates": own.Updates,
    }


if __name__ == "__main__":
    serve(parts(sys.modules[__name__]), ("stable-baselines3", "torch", "gymnasium"))
