import jax
import jax.numpy as jnp
import numpy as np
import pytest
from env_helpers import roll, shapes, uniform
from flax import struct
from gymnax.environments import environment as base
from gymnax.environments import spaces

import environments
from environments import vectorise
from environments.adapters import gymnax as adapter
from jaxrl.errors import UsageError
from jaxrl.spaces import Box, Discrete

# One step before its end: fields of the state, and the action that ends it.
NEAR_THE_END = {
    "CartPole-v1": ({"x": 2.39, "x_dot": 5.0}, 1),
    "Acrobot-v1": ({"joint_angle1": 3.1, "joint_angle2": 0.0}, 1),
    "MountainCar-v0": ({"position": 0.49, "velocity": 0.07}, 2),
    "MountainCarContinuous-v0": ({"position": 0.44, "velocity": 0.07}, [1.0]),
}


def near_the_end(env, state, name):
    fields, action = NEAR_THE_END[name]
    leaves = {field: jnp.float32(value) for field, value in fields.items()}
    return state._replace(inner=state.inner.replace(**leaves)), jnp.asarray(action, env.action_space.dtype)


@pytest.mark.parametrize("name", NEAR_THE_END)
def test_a_death_is_no_limit_and_a_limit_no_death(name):
    env = environments.make(f"gymnax:{name}", max_steps=2)
    key = jax.random.key(0)
    start, first = env.reset(key)
    still = jnp.zeros(env.action_space.shape, env.action_space.dtype)
    step = jax.jit(env.step)

    dying, action = near_the_end(env, start, name)
    _, death = step(dying, action, jax.random.key(1))
    assert (bool(death.terminated), bool(death.truncated)) == (True, False)

    later, alive = step(start, still, jax.random.key(2))
    assert (bool(alive.terminated), bool(alive.truncated)) == (False, False)
    _, limit = step(later, still, jax.random.key(3))
    assert (bool(limit.terminated), bool(limit.truncated)) == (False, True)

    dying, action = near_the_end(env, later, name)
    _, both = step(dying, action, jax.random.key(4))
    assert (bool(both.terminated), bool(both.truncated)) == (True, True)
    assert shapes(both) == shapes(first)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("CartPole-v1", 500),
        ("Pendulum-v1", 200),
        ("Acrobot-v1", 500),
        ("MountainCar-v0", 200),
        ("MountainCarContinuous-v0", 999),
    ],
)
def test_the_time_limit_is_gymnax_s_own_unless_given(name, limit):
    assert environments.make(f"gymnax:{name}").max_steps == limit
    assert environments.make(f"gymnax:{name}", max_steps=limit + 5).max_steps == limit + 5


def test_pendulum_is_truncated_at_200_and_never_dies():
    env = vectorise(environments.make("gymnax:Pendulum-v1"), 2)
    assert env.action_space == Box(-2.0, 2.0, (1,))
    _, steps, _ = roll(env, 401, policy=uniform)
    np.testing.assert_array_equal(np.flatnonzero(steps.truncated[:, 0]), [199, 399])
    assert not np.any(steps.terminated)
    np.testing.assert_allclose(steps.metrics["episode/return"][199], steps.reward[:200].sum(axis=0), rtol=1e-5)


def test_a_pole_falls_and_starts_elsewhere():
    env = vectorise(environments.make("gymnax:CartPole-v1"), 2)
    first, steps, _ = roll(env, 40, policy=lambda env, key: jnp.ones(2, jnp.int32))
    ended = np.asarray(steps.terminated)
    assert ended.sum() >= 4 and not np.any(steps.truncated)
    assert np.all(np.abs(steps.next_observation[ended][:, 2]) > 12 * np.pi / 180)
    assert np.all(np.abs(steps.observation[ended]) <= 0.05)
    starts = np.concatenate([first.observation, steps.observation[ended]])
    assert len(np.unique(starts)) == starts.size
    np.testing.assert_array_equal(steps.reward, np.ones((40, 2)))


@struct.dataclass
class OldParams:
    max_steps_in_episode: int = 5
    edge: float = 3.0


@struct.dataclass
class OldState:
    position: jax.Array
    terminal: bool
    time: int


class OldWalk(base.Environment):
    """Walks by its action, dies at the edge, and mixes the limit into ``done``, as environments for gymnax 0 do.

    Its position is an integer after a reset and a float after a step.
    """

    default_params = OldParams()

    def reset_env(self, key, params):
        return jnp.zeros(2), OldState(position=0, terminal=False, time=0)

    def step_env(self, key, state, action, params):
        state = OldState(position=state.position + action[0], terminal=state.terminal, time=state.time + 1)
        done = self.is_terminal(state, params)
        # The state remembers the end, as MinAtar's did, and the observation depends on the limit.
        state = state.replace(terminal=done)
        left = 1 - state.time / params.max_steps_in_episode
        return jnp.array([state.position, left]), state, jnp.array([1]), done, {}

    def is_terminal(self, state, params):
        over = jnp.logical_or(state.position >= params.edge, state.time >= params.max_steps_in_episode)
        return jnp.logical_or(state.terminal, over)

    def observation_space(self, params):
        return spaces.Box(-jnp.finfo(jnp.float32).max, jnp.finfo(jnp.float32).max, (2,))

    def action_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,))


class SixWalk(OldWalk):
    """The same, with both flags in what ``step_env`` returns."""

    def step_env(self, key, state, action, params):
        observation, state, reward, _, info = super().step_env(key, state, action, params)
        dead = state.position >= params.edge
        return observation, state, reward, dead, state.time >= params.max_steps_in_episode, info


@pytest.mark.parametrize("kind", [OldWalk, SixWalk])
@pytest.mark.parametrize(
    ("stride", "edge", "terminated", "truncated"),
    [
        (0.5, 1.5, [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]),
        (0.0, 3.0, [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]),
        (0.5, 2.5, [0, 0, 0, 0, 1], [0, 0, 0, 0, 1]),
    ],
    ids=["death", "limit", "both"],
)
def test_a_limit_mixed_into_done_is_taken_out(kind, stride, edge, terminated, truncated):
    env = adapter.from_gymnax("old:walk", kind(), OldParams(edge=edge))
    _, steps, _ = roll(vectorise(env, 1), 5, policy=lambda env, key: jnp.full((1, 1), stride))
    np.testing.assert_array_equal(steps.terminated[:, 0], terminated)
    np.testing.assert_array_equal(steps.truncated[:, 0], truncated)
    np.testing.assert_allclose(steps.next_observation[0, 0], [stride, 0.8], atol=1e-6)
    assert env.observation_space == Box(-np.inf, np.inf, (2,)) and env.max_steps == 5


def test_an_older_limit_can_be_changed():
    env = adapter.from_gymnax("old:walk", OldWalk(), max_steps=2)
    _, steps, _ = roll(vectorise(env, 1), 4)
    np.testing.assert_array_equal(steps.truncated[:, 0], [0, 1, 0, 1])
    assert not np.any(steps.terminated)
    np.testing.assert_allclose(steps.next_observation[:, 0, 1], [0.5, 0.0, 0.5, 0.0])


def test_parameters_reach_the_environment():
    light, heavy = (environments.make("gymnax:Pendulum-v1", g=g) for g in (0.0, 10.0))
    ends = []
    for env in (light, heavy):
        state, _ = env.reset(jax.random.key(0))
        ends.append(env.step(state, jnp.zeros(1), jax.random.key(1))[1].observation)
    assert np.abs(ends[0] - ends[1]).max() > 0.1
    assert environments.make("gymnax:DeepSea-bsuite", size=5).observation_space.shape == (5, 5)


def test_spaces_are_converted():
    space = adapter.convert_space(spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(0, 255, (2, 2), jnp.uint8)}))
    assert space == {"a": Discrete(3), "b": Box(0, 255, (2, 2), jnp.uint8)}
    pair = adapter.convert_space(spaces.Tuple([spaces.Discrete(2), spaces.Box(jnp.array([-1.0, 0.0]), 2.0, (2,))]))
    assert pair == {"0": Discrete(2), "1": Box([-1.0, 0.0], 2.0, (2,))}


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("CartPole-v1", {"backend": "mjx"}, "takes no 'backend'; it takes gravity, "),
        ("CartPole-v1", {"max_steps_in_episode": 3}, "takes no 'max_steps_in_episode'; it takes .*max_steps"),
        ("CartPole-v1", {"max_steps": 0}, "max_steps must be at least 1, got 0"),
        ("CartPole-v2", {}, "did you mean 'CartPole-v1'"),
    ],
)
def test_arguments_that_cannot_be_are_refused(name, kwargs, message):
    with pytest.raises(UsageError, match=message):
        adapter.make(name, **kwargs)


def test_an_observation_of_another_shape_than_its_space_is_refused():
    class Liar(OldWalk):
        def observation_space(self, params):
            return spaces.Box(0.0, 1.0, (3,))

    with pytest.raises(UsageError, match=r"liar observes an array of shape \(2,\)"):
        adapter.from_gymnax("liar", Liar())
