"""MuJoCo Playground behind the contract, and refusals in place of downloads."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from environments.adapters import playground
from jaxrl.errors import MissingExtraError, UsageError
from jaxrl.spaces import Box

pytest.importorskip("mujoco_playground")


@pytest.fixture(autouse=True)
def _key_reuse():
    with jax.debug_key_reuse(True):
        yield


def test_names_are_those_that_playground_registers():
    from mujoco_playground import registry

    assert sorted(playground.names()) == sorted(registry.ALL_ENVS)


def test_cartpole_holds_an_action_for_two_steps_and_is_truncated_not_dead(capfd):
    env = playground.make("CartpoleBalance", max_steps=3, action_repeat=2)
    assert env.action_space == Box(-1.0, 1.0, (1,)) and env.observation_space.shape == (5,)
    assert env.max_steps == 3 and env.rendering["dt"] == pytest.approx(0.02)

    def run(key):
        reset_key, steps_key = jax.random.split(key)

        def body(carry, step_key):
            state, step = env.step(carry[0], jnp.full((1,), 0.5), step_key)
            return (state, step), step

        start = env.reset(reset_key)
        return start[1], jax.lax.scan(body, start, jax.random.split(steps_key, 4))[1]

    first, steps = jax.jit(run)(jax.random.key(0))
    assert np.asarray(steps.truncated).tolist() == [False, False, True, True]
    assert not steps.terminated.any()
    np.testing.assert_array_equal(steps.observation, steps.next_observation)
    # A push of 0.5 for 0.02 s to the cart of 1 kg, with 10 N at 1: about 0.1 m/s a step, whatever the pole does.
    speed = np.asarray([first.observation[3], *steps.observation[:, 3]])
    np.testing.assert_allclose(np.diff(speed), 0.1, rtol=0.15)
    # Upright, the reward is nearly 1 a step, less 1/5 (1 - 0.5^2 …) for the effort; two steps are added.
    assert (np.asarray(steps.reward) > 1.8).all() and (np.asarray(steps.reward) < 2.0).all()
    assert steps.metrics["env/reward/upright"].shape == (4,)
    assert "WARNING" not in capfd.readouterr().err


def test_a_death_ends_a_held_action():
    """A task that dies in its second step and rewards 1 in each: three steps of it give 2, not 3."""

    class Task:
        def step(self, state, action):
            count = state.info["count"] + 1
            return state.replace(
                reward=jnp.ones(()), done=(count >= 2).astype(jnp.float32), info={"count": count}, obs=count
            )

    from mujoco_playground import State

    start = State(None, jnp.zeros(()), jnp.zeros(()), jnp.zeros(()), {}, {"count": jnp.zeros(())})
    state, step = playground._step(Task(), None, 3, start, jnp.zeros(1), jax.random.key(0))
    assert float(step.reward) == 2 and bool(step.terminated) and not bool(step.truncated)
    assert float(state.info["count"]) == 2


def test_an_entry_of_a_dict_is_picked():
    observation = {"state": 1, "privileged_state": 2}
    pick = partial(playground._entry, "task", observation=observation)
    assert playground._pick(pick("state"), observation) == 1
    assert playground._pick(pick("privileged_state"), observation) == 2
    assert playground._pick(pick(None), observation) == observation
    assert playground._pick(playground._entry("task", "state", {"pixels": 3}), {"pixels": 3}) == {"pixels": 3}
    with pytest.raises(UsageError, match="did you mean 'privileged_state'"):
        pick("privileged")


@pytest.mark.parametrize("name", ["Go1JoystickFlatTerrain", "PandaPickCube"])
def test_a_task_whose_models_are_missing_is_refused_and_nothing_is_downloaded(name, monkeypatch, tmp_path):
    monkeypatch.setattr(playground, "_models_path", lambda: tmp_path / "absent")
    monkeypatch.setattr(playground, "_load", lambda *a: pytest.fail("it would have downloaded"))
    with pytest.raises(UsageError, match="needs robot models") as error:
        playground.make(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: playground.make("CartpoleBalanc"), "did you mean 'CartpoleBalance'"),
        (lambda: playground.make("CartpoleBalance", simdt=0.01), "did you mean 'sim_dt'"),
        (lambda: playground.make("CartpoleBalance", observation="pixels"), "'pixels'"),
        (lambda: playground.make("CartpoleBalance", sim_dt="fast"), "sim_dt"),
        (lambda: playground.make("CartpoleBalance", max_steps=0), "max_steps"),
    ],
)
def test_what_cannot_work_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(playground.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"jaxrl\[playground\]"):
        playground.names()
