"""The arm suite: its mechanics against an independent derivation, reward and success by hand, and its tasks one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from env_helpers import roll

import environments
from environments import arm
from environments.arm import physics, tasks
from environments.rendering import flat_scene
from jaxrl.errors import UsageError


def lagrangian_acceleration(q, speed, torque, gravity):
    """float64: kinetic and potential energy of two masses of 1 kg, differentiated numerically."""

    def places(q):
        elbow = 0.5 * np.array([np.cos(q[0]), np.sin(q[0])])
        return elbow, elbow + 0.5 * np.array([np.cos(q[0] + q[1]), np.sin(q[0] + q[1])])

    def slope(function, q, step=1e-5):
        return np.stack([(function(q + step * e) - function(q - step * e)) / (2 * step) for e in np.eye(2)], axis=-1)

    def mass(q):
        jacobians = [slope(lambda p, k=k: places(p)[k], q) for k in range(2)]
        return sum(jacobian.T @ jacobian for jacobian in jacobians)

    potential = lambda q: gravity * sum(place[1] for place in places(q))
    turning = slope(mass, q, 1e-4)  # [i, j, k] = dM_ij / dq_k
    moved = turning @ speed @ speed - 0.5 * np.einsum("jki,j,k->i", turning, speed, speed)
    return np.linalg.solve(mass(q), torque - 0.5 * speed - moved - slope(potential, q))


def test_the_equations_of_motion_are_those_of_the_lagrangian():
    rng = np.random.default_rng(0)
    for gravity in (0.0, 4.0):
        q, speed, torque = rng.uniform(-2, 2, (3, 2))
        with jax.enable_x64(True):
            got = physics.acceleration(physics.Arm(jnp.asarray(q), jnp.asarray(speed)), jnp.asarray(torque), gravity)
        np.testing.assert_allclose(got, lagrangian_acceleration(q, speed, torque, gravity), rtol=1e-5, atol=1e-6)


def test_a_motor_step_by_hand():
    """At rest with a right angle at the elbow and both torques at their limits, 3 and 1.5: M = [[.75, .25], [.25, .25]],
    so both joints gain 3 rad/s²; half of it where half of a limit would do."""
    rest = physics.Arm(jnp.array([0.0, np.pi / 2]), jnp.zeros(2))
    moved = physics.move(rest, jnp.ones(2), jnp.zeros(()))
    np.testing.assert_allclose(moved.speed, [0.075, 0.075], rtol=1e-5)
    np.testing.assert_allclose(moved.q - rest.q, [0.001875, 0.001875], rtol=1e-3)
    half = physics.move(rest, jnp.array([1.5 / 9, 0.75 / 3]), jnp.zeros(()))  # gain × 3 rad/s × share
    np.testing.assert_allclose(half.speed, [0.0375, 0.0375], rtol=1e-5)


def test_the_tip_and_its_velocity():
    a = physics.Arm(jnp.array([0.3, 0.9]), jnp.array([1.0, -2.0]))
    later = a._replace(q=a.q + 1e-3 * a.speed)
    np.testing.assert_allclose(physics.tip_velocity(a), (physics.tip(later.q) - physics.tip(a.q)) / 1e-3, atol=2e-3)
    np.testing.assert_allclose(physics.tip(jnp.array([0.0, np.pi / 2])), [0.5, 0.5], atol=1e-6)


def test_contact_by_hand():
    """Tip at (1, 0) moving up at 1 m/s with a puck 0.1 above it: put 0.12 above, and pushed at (1 + bounce) m/s; beside
    it the puck takes over the grip's share."""
    a = physics.Arm(jnp.zeros(2), jnp.array([1.0, 0.0]))
    none = jnp.zeros(2)
    above = physics.slide(physics.Puck(jnp.array([1.0, 0.1]), none), a, 0.0, 0.5, 0.8)
    np.testing.assert_allclose(above.position, [1.0, 0.12], atol=1e-6)
    np.testing.assert_allclose(above.velocity, [0.0, 1.5], atol=1e-6)
    beside = physics.slide(physics.Puck(jnp.array([1.1, 0.0]), none), a, 0.0, 0.5, 0.8)
    np.testing.assert_allclose(beside.velocity, [0.0, 0.8], atol=1e-6)
    free = physics.slide(physics.Puck(jnp.array([2.0, 0.0]), jnp.array([1.0, 0.0])), a, 4.0, 0.5, 0.8)
    np.testing.assert_allclose(free.velocity, [0.9, 0.0], atol=1e-6)  # 1 - 4 × 0.025
    np.testing.assert_allclose(free.position, [2.0225, 0.0], atol=1e-6)


def test_a_knob_stays_on_its_rail():
    puck = physics.Puck(jnp.array([0.9, 0.4]), jnp.array([1.0, 1.0]))
    railed = physics.on_rail(puck, jnp.array([0.6, 0.0]), jnp.asarray(0.15))
    np.testing.assert_allclose(railed.position, [0.6 + 0.15 * 0.6, 0.15 * 0.8], atol=1e-6)
    np.testing.assert_allclose(jnp.dot(railed.velocity, jnp.array([0.6, 0.8])), 0.0, atol=1e-6)


def row(name, **changes):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), tasks.parameters((name,)))._replace(**changes)


def test_reward_by_hand():
    """Tip at (0.5, 0.5). reach: goal 0.3 away, then 0.05 away. push: puck 0.3 from its goal, tip 0.4 from the puck."""
    state, _ = arm._reset(row("reach"), jax.random.key(0))
    state = state._replace(arm=physics.Arm(jnp.array([0.0, np.pi / 2]), jnp.zeros(2)), goal=jnp.array([0.5, 0.8]))
    assert float(arm._judge(row("reach", scale=10.0), state)[0]) == pytest.approx(-3.0, abs=1e-5)
    close = state._replace(goal=jnp.array([0.5, 0.55]))
    assert float(arm._judge(row("reach", scale=10.0), close)[0]) == pytest.approx(9.5, abs=1e-5)
    assert float(arm._judge(row("button"), close)[0]) == 1 and float(arm._judge(row("button"), state)[0]) == 0
    puck = state._replace(puck=physics.Puck(jnp.array([0.9, 0.5]), jnp.zeros(2)), goal=jnp.array([0.9, 0.8]))
    assert float(arm._judge(row("push"), puck)[0]) == pytest.approx(-2 * 0.3 - 0.5 * 0.4, abs=1e-5)


def test_success_needs_so_many_steps_in_a_row_and_an_untouched_obstacle():
    task = row("avoid", hold=2.0)
    state, _ = arm._reset(task, jax.random.key(0))
    here = physics.tip(state.arm.q)
    far, at = state._replace(goal=here + 1), state._replace(goal=here)
    streaks = []
    for judged in (at, far, at, at):
        state = arm._judge(task, judged._replace(streak=state.streak))[1]
        streaks.append(float(state.streak))
    assert streaks == [1, 0, 1, 2]
    hit = at._replace(obstacle=here)
    reward, after = arm._judge(task, hit)
    assert float(reward) == pytest.approx(-2.0, abs=1e-5) and float(after.touched) == 1 and float(after.streak) == 0
    assert float(arm._judge(task, after._replace(obstacle=here + 1))[1].streak) == 0
    calm = row("swing-up")
    fast = at._replace(arm=at.arm._replace(speed=jnp.array([0.0, 3.1])))
    assert float(arm._judge(calm, fast)[1].streak) == 0 and float(arm._judge(calm, at)[1].streak) == 1


def test_starts_are_where_the_table_says():
    env = environments.make("arm:MT10", num_envs=1000)
    state, step = env.reset(jax.random.key(0))
    inner = state.inner[0].inner
    centre = np.asarray(inner.centre).reshape(10, 100, 2)
    for k, name in enumerate(env.tasks):
        radius, wanted = np.linalg.norm(centre[k], axis=-1), tasks.TABLE[name]
        if name not in ("hold", "dial"):
            low, high = wanted.goal_radius
            assert low - 1e-5 <= radius.min() and radius.max() <= high + 1e-5
            assert radius.std() > 0 or low == high
    observed = np.asarray(step.observation)[:, :17].reshape(10, 100, 17)
    has_puck, has_obstacle = (np.abs(observed[:, :, part]).sum((1, 2)) > 0 for part in (slice(10, 12), slice(14, 16)))
    assert [env.tasks[k] for k in np.flatnonzero(has_puck)] == ["push", "strike", "dial"]
    assert [env.tasks[k] for k in np.flatnonzero(has_obstacle)] == ["avoid"]
    assert [env.tasks[k] for k in np.flatnonzero(np.abs(observed[:, :, 8:10]).sum((1, 2)) > 0)] == ["track"]


def resolved_motion(observation):
    """Joint speeds that carry the tip towards the goal: a damped inverse of the Jacobian, from the observation alone."""
    x1, y1, x2, y2 = (0.5 * observation[i] for i in range(4))
    jacobian = jnp.array([[-y1 - y2, -y2], [x1 + x2, x2]])
    wanted = 6.0 * observation[6:8] + observation[8:10]
    speed = jacobian.T @ jnp.linalg.solve(jacobian @ jacobian.T + 0.01 * jnp.eye(2), wanted)
    return jnp.clip(speed / physics.COMMAND, -1.0, 1.0)


@pytest.mark.parametrize("name", ["reach", "track"])
def test_tasks_of_the_tip_are_solved_by_resolved_motion(name):
    env = environments.make(f"arm:{name}")

    @jax.jit
    def play(keys):
        state, first = jax.vmap(env.reset)(keys)

        def body(carry, _):
            state, observation = carry
            state, step = jax.vmap(env.step)(state, jax.vmap(resolved_motion)(observation), keys)
            return (state, step.observation), step.metrics["success"]

        return jax.lax.scan(body, (state, first.observation), length=env.max_steps)[1]

    assert play(jax.random.split(jax.random.key(0), 50)).max(0).mean() >= 0.9


def test_sets_limits_and_spread():
    assert environments.make("arm:MT10").tasks == tasks.TASKS and len(environments.make("arm:MT10").groups) == 1
    assert environments.make("arm:MT3").tasks == ("reach", "button", "push")
    assert environments.make("arm:reach").max_steps == 60 and environments.make("arm:swing-up").max_steps == 100
    assert environments.make("arm:MT10").max_steps == 100 and environments.make("arm:MT5", max_steps=9).max_steps == 9
    scale = np.asarray(environments.make("arm:MT10", spread=1e3).groups[0].parameters[0].scale)
    np.testing.assert_allclose(scale.max() / scale.min(), 1e3, rtol=1e-5)
    rising = environments.make("arm:MT10", spread=1e3, order="rising").groups[0].parameters[0].scale
    np.testing.assert_allclose(rising, 10.0 ** (3 * (np.arange(10) / 9 - 0.5)), rtol=1e-5)


def test_lanes_step_and_end_at_their_own_limits():
    env = environments.make("arm:MT10", num_envs=20)
    _, steps, _ = roll(env, 101)
    ends = [int(np.flatnonzero(steps.truncated[:, 2 * k])[0]) + 1 for k in range(10)]
    assert ends == [tasks.TABLE[name].horizon for name in env.tasks]
    assert not steps.terminated.any() and np.isfinite(steps.observation).all() and np.isfinite(steps.reward).all()


def test_it_is_drawn():
    env = environments.make("arm:avoid")
    state, _ = env.reset(jax.random.key(0))
    shapes = flat_scene(env, [state, state], 0)["frames"][0]
    assert sum("line" in shape for shape in shapes) == 2 and any(shape.get("fill") == "bad" for shape in shapes)
    lanes = environments.make("arm:MT10", num_envs=10)
    assert flat_scene(lanes, [lanes.reset(jax.random.key(0))[0]], 5)["frames"][0]


def test_a_misspelt_task_gets_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'arm:reach'"):
        environments.make("arm:reech")
