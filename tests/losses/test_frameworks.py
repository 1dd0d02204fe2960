"""One loss, one number and one gradient, whichever library the network was written in."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl.losses import value

IN, HIDDEN, ACTIONS, BATCH = 3, 8, 4, 16


class LinenMLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(ACTIONS, name="second")(jnp.tanh(nn.Dense(HIDDEN, name="first")(x)))


class NnxMLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(IN, HIDDEN, rngs=rngs)
        self.second = nnx.Linear(HIDDEN, ACTIONS, rngs=rngs)

    def __call__(self, x):
        return self.second(jnp.tanh(self.first(x)))


def by_hand(params, x):
    hidden = jnp.tanh(x @ params["first"]["kernel"] + params["first"]["bias"])
    return hidden @ params["second"]["kernel"] + params["second"]["bias"]


def weights():
    rng = np.random.default_rng(0)
    sizes = {"first": (IN, HIDDEN), "second": (HIDDEN, ACTIONS)}
    return {
        name: {"kernel": jnp.float32(rng.normal(size=s)), "bias": jnp.float32(rng.normal(size=s[1]))}
        for name, s in sizes.items()
    }


def mean_loss(network, batch):
    """Double Q-learning with one network for everything; ``network`` maps one observation to values."""

    def loss(observation, action, reward, discount, next_observation):
        q_t = network(next_observation)
        target = value.double_q_learning_target(reward, discount, q_t, q_t)
        return value.huber(target - network(observation)[action])

    return jnp.mean(jax.vmap(loss)(*batch))


def test_one_loss_gives_one_number_and_one_gradient():
    rng = np.random.default_rng(1)
    observation, next_observation = jnp.float32(rng.normal(size=(2, BATCH, IN)))
    action, reward = rng.integers(0, ACTIONS, BATCH), jnp.float32(rng.normal(size=BATCH))
    batch = (observation, action, reward, jnp.float32(0.9 * (rng.random(BATCH) < 0.8)), next_observation)
    params = weights()

    hand_loss, hand_gradient = jax.value_and_grad(lambda p: mean_loss(lambda x: by_hand(p, x), batch))(params)
    linen_loss, linen_gradient = jax.value_and_grad(
        lambda p: mean_loss(lambda x: LinenMLP().apply({"params": p}, x), batch)
    )(params)
    graph, state = nnx.split(NnxMLP(nnx.Rngs(0)))
    nnx.replace_by_pure_dict(state, params)
    nnx_loss, nnx_gradient = jax.value_and_grad(lambda s: mean_loss(lambda x: nnx.merge(graph, s)(x), batch))(state)

    assert hand_loss > 0.0
    np.testing.assert_allclose([linen_loss, nnx_loss], hand_loss, rtol=1e-6)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, linen_gradient, hand_gradient)
    jax.tree.map(close, nnx.to_pure_dict(nnx_gradient), hand_gradient)
