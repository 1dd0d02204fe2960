"""What every registered agent must do, whatever its method. All of it runs under JAX's checker of reused keys."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl import agents
from jaxrl.distributions import scale_action
from jaxrl.errors import UsageError
from jaxrl.spaces import Box
from jaxrl.types import Experience
from tests.agents import toys

cases = pytest.mark.parametrize(("name", "kind"), toys.CASES, ids=lambda value: value)
# Compiling the largest networks is most of what these tests take.
LARGE = ("brc", "fast_td3", "simba_v2")
fewer = pytest.mark.parametrize(
    ("name", "kind"),
    [pytest.param(*case, marks=pytest.mark.slow) if case[0] in LARGE else case for case in toys.CASES],
    ids=lambda value: value,
)


@pytest.fixture(autouse=True)
def no_key_is_used_twice():
    with jax.debug_key_reuse(True):
        yield


def signature(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, getattr(x, "weak_type", False)), tree)


def prepared(name, kind, seed=0):
    """A compiled agent, a state that has observed something, and a batch."""
    agent = toys.compiled(name, kind)
    rollout = toys.experience(kind, seed)
    state = agent.observe(agent.init(jax.random.key(seed)), rollout)
    return agent, state, toys.batch_for(agent.agent, rollout)


def test_the_checker_of_keys_is_on():
    key = jax.random.key(0)
    jax.random.normal(key)
    with pytest.raises(jax.errors.KeyReuseError):
        jax.random.normal(key)


def test_every_agent_accepts_some_action_space():
    assert {name for name, _ in toys.CASES} == set(agents.names())


@cases
def test_update_keeps_structure_and_dtypes_and_changes_every_trained_part(name, kind):
    agent, state, batch = prepared(name, kind)
    after, metrics = agent.update(state, batch, jax.random.key(1))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert signature(after) == signature(state)
    parts = state.params if set(state.params) != {"params"} else {"all": state.params}
    for part, before in parts.items():
        now = after.params if part == "all" else after.params[part]
        moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), before, now)
        assert max(jax.tree.leaves(moved)) > 0, part
    priority = metrics.pop("priority", None)
    assert agent.agent.on_policy or (priority.shape == (toys.T * toys.N,) and float(priority.min()) > 0)
    for metric, value in metrics.items():
        assert "/" in metric and value.shape == () and value.dtype == jnp.float32, metric
        assert np.isfinite(value), metric
    assert float(metrics["critic/gradient_norm"]) > 0 or float(metrics["critic/loss"]) == 0
    assert int(after.updates) == 1 and int(after.steps) == toys.T * toys.N


@cases
def test_hyper_parameters_are_float32_scalars_and_hold_the_discount(name, kind):
    state = toys.compiled(name, kind).init(jax.random.key(0))
    assert "discount" in state.hyper._fields
    for leaf in state.hyper:
        assert leaf.shape == () and leaf.dtype == jnp.float32 and not leaf.weak_type


@cases
def test_actions_have_the_space_s_shape_dtype_and_bounds(name, kind):
    agent, state, _ = prepared(name, kind)
    space = toys.ACTIONS[kind]
    observation = jax.random.normal(jax.random.key(0), (64, 3)) * 100.0
    for explore in (True, False):
        action = agent.act(state, observation, jax.random.key(1), explore)
        assert action.shape == (64, *space.shape) and action.dtype == space.dtype
        if kind == "box":
            assert bool(jnp.all((action >= space.low) & (action <= space.high)))
        else:
            assert bool(jnp.all((action >= 0) & (action < space.n)))
    for leading in ((), (2, 3)):
        shape = jax.eval_shape(
            lambda *a: agent.agent.act(*a, True), state, jnp.zeros((*leading, 3)), jax.random.key(2)
        ).shape
        assert shape == leading + space.shape


@cases
def test_acting_draws_when_exploring_and_not_otherwise(name, kind):
    agent, state, _ = prepared(name, kind)
    observation = jax.random.normal(jax.random.key(0), (64, 3)) * 3.0
    first, second = (agent.act(state, observation, jax.random.key(seed), True) for seed in (1, 2))
    assert not np.array_equal(first, second)
    first, second = (agent.act(state, observation, jax.random.key(seed), False) for seed in (1, 2))
    np.testing.assert_array_equal(first, second)


@fewer
def test_a_member_of_a_population_equals_the_agent_alone(name, kind):
    """Seeds and every hyper-parameter differ between the members; both are axes of one compiled program."""
    agent = toys.compiled(name, kind)
    states = [agent.init(jax.random.key(seed)) for seed in (0, 1)]
    scaled = jax.tree.map(lambda x: 0.7 * x, states[1].hyper)
    states[1] = states[1]._replace(hyper=scaled)
    batches = [toys.batch_for(agent.agent, toys.experience(kind, seed)) for seed in (0, 1)]
    stack = lambda *trees: jax.tree.map(lambda *x: jnp.stack(x), *trees)
    population, batch = stack(*states), stack(*batches)
    for turn in range(4):
        population, metrics = agent.population_update(population, batch, jax.random.split(jax.random.key(turn)))
        keys = jax.random.split(jax.random.key(turn))
        alone = [agent.update(states[i], batches[i], keys[i]) for i in (0, 1)]
        states = [state for state, _ in alone]
    for together, single in ((population, stack(*states)), (metrics, stack(*(m for _, m in alone)))):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), together, single)


@cases
def test_a_swept_hyper_parameter_changes_the_update(name, kind):
    agent, state, batch = prepared(name, kind)
    usual, _ = agent.update(state, batch, jax.random.key(1))
    still = {field: 0.0 for field in state.hyper._fields if field.endswith("learning_rate")}
    after, _ = agent.update(toys.with_hyper(state, **still), batch, jax.random.key(1))
    assert still
    jax.tree.map(np.testing.assert_array_equal, after.params, state.params)
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), usual.params, state.params)
    assert max(jax.tree.leaves(moved)) > 0


def multi_transform(learning_rate):
    """Kernels by one optimiser, everything else by another, behind a clip."""

    def label(path, _):
        return "kernel" if path and getattr(path[-1], "key", "") == "kernel" else "other"

    parts = {"kernel": optax.adamw(learning_rate, weight_decay=0.1), "other": optax.sgd(learning_rate, momentum=0.9)}
    labels = lambda params: jax.tree_util.tree_map_with_path(label, params)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.multi_transform(parts, labels))


@fewer
def test_any_optax_transformation_trains(name, kind):
    chain = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    for optimizer in (optax.adam, optax.adam(1e-3), chain):
        agent = toys.make(name, kind, optimizer)
        state = jax.eval_shape(agent.init, jax.random.key(0))
        batch = toys.batch_for(agent, toys.experience(kind))
        after, _ = jax.eval_shape(agent.update, state, batch, jax.random.key(1))
        assert after == state
    agent = toys.make(name, kind, multi_transform)
    state = jax.jit(agent.init)(jax.random.key(0))
    after, metrics = jax.jit(agent.update)(state, toys.batch_for(agent, toys.experience(kind)), jax.random.key(1))
    assert signature(after) == signature(state)
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves((after.params, metrics)))
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), state.params, after.params)
    assert max(jax.tree.leaves(moved)) > 0


@cases
def test_legacy_keys_are_refused(name, kind):
    agent = toys.compiled(name, kind).agent
    state = toys.compiled(name, kind).init(jax.random.key(0))
    legacy = jax.random.PRNGKey(0)
    rollout = toys.experience(kind)
    with pytest.raises(UsageError, match="expected a typed key"):
        agent.init(legacy)
    with pytest.raises(UsageError, match="expected a typed key"):
        agent.act(state, rollout.observation, legacy, True)
    with pytest.raises(UsageError, match="expected a typed key"):
        agent.update(state, toys.batch_for(agent, rollout), legacy)


@cases
def test_no_two_leaves_of_a_fresh_state_share_a_buffer(name, kind):
    """A state that is donated whole may not hold one buffer twice."""
    state = toys.compiled(name, kind).agent.init(jax.random.key(0))
    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(set(pointers)) == len(pointers)


@cases
def test_observe_counts_steps_and_sees_raw_observations(name, kind):
    agent = toys.compiled(name, kind)
    rollout = toys.experience(kind)
    state = agent.observe(agent.init(jax.random.key(0)), rollout)
    flat = rollout.observation.reshape(-1, 3)
    np.testing.assert_allclose(state.normaliser.mean, flat.mean(0), rtol=1e-5)
    np.testing.assert_allclose(state.normaliser.var, flat.var(0), rtol=1e-4)
    assert int(state.steps) == toys.T * toys.N
    full = agent.observe(state._replace(steps=jnp.int32(2**31 - 2)), rollout)
    assert int(full.steps) == 2**31 - 1


@cases
def test_normalisation_is_in_force_when_acting_and_learning(name, kind):
    """Shifting observations and statistics alike changes neither what an agent does nor what it learns."""
    agent, state, batch = prepared(name, kind)
    shift = jnp.array([5.0, -3.0, 0.5])
    moved = state._replace(normaliser=state.normaliser._replace(mean=state.normaliser.mean + shift))
    other = batch._replace(observation=batch.observation + shift, next_observation=batch.next_observation + shift)
    np.testing.assert_allclose(
        agent.act(state, batch.observation, jax.random.key(1), False),
        agent.act(moved, other.observation, jax.random.key(1), False),
        rtol=1e-4,
        atol=1e-4,
    )
    _, metrics = agent.update(state, batch, jax.random.key(2))
    _, same = agent.update(moved, other, jax.random.key(2))
    _, different = agent.update(state, other, jax.random.key(2))
    np.testing.assert_allclose(same["critic/loss"], metrics["critic/loss"], rtol=1e-4)
    assert abs(float(different["critic/loss"] - metrics["critic/loss"])) > 1e-3 * float(metrics["critic/loss"])


@cases
def test_weights_multiply_the_loss_of_each_sample(name, kind):
    agent, state, batch = prepared(name, kind)
    if agent.agent.on_policy:
        assert not hasattr(batch, "weight")
        return
    first = jnp.zeros(toys.T * toys.N).at[0].set(1.0)
    losses = []
    for weight in (first, 1.0 - first, jnp.ones_like(first)):
        losses.append(float(agent.update(state, batch._replace(weight=weight), jax.random.key(1))[1]["critic/loss"]))
    assert losses[0] > 0
    np.testing.assert_allclose(losses[0] + losses[1], losses[2], rtol=1e-5)


@cases
def test_a_time_limit_is_not_a_death(name, kind):
    """One state, a reward of 1 at every step, discount 0.9, a flag at every fourth step.

    If the flag is a time limit the value is 1 / (1 - 0.9) = 10. If it is a death, a step is the last one in a quarter of
    the cases, and the value is v = 1 + 0.9 * 3/4 * v, 1 / 0.325 = 3.0769.
    """
    fields = {"discount": 0.9, "gae_lambda": 0.0, "initial_temperature": 1e-6, "minibatches": 1, "epochs": 1}
    agent = toys.make(name, kind, optax.adam(0.01), activation="tanh", policy_delay=1, **fields)
    # Every action meets flagged and unflagged steps alike, so that no critic can tell them apart; and there are enough of
    # them, bounds included, that no policy finds one that the critics know nothing of.
    lanes, space = 32, toys.ACTIONS[kind]
    if kind == "box":
        unit = np.clip(np.random.default_rng(0).uniform(-1.5, 1.5, (lanes, *space.shape)), -1.0, 1.0)
        action = scale_action(jnp.float32(unit), space.low, space.high)
    else:
        action = jnp.arange(lanes, dtype=jnp.int32) % space.n
    action = jnp.broadcast_to(action, (toys.T, *action.shape))
    constant = jnp.full((toys.T, lanes, 3), 0.5)
    flag = jnp.broadcast_to((jnp.arange(toys.T) == toys.T - 1)[:, None], (toys.T, lanes))
    flags = {"truncated": (jnp.zeros_like(flag), flag), "terminated": (flag, jnp.zeros_like(flag))}

    def learn(terminated, truncated, key):
        steps = Experience(constant, action, jnp.ones_like(flag, jnp.float32), terminated, truncated, constant)
        batch = toys.batch_for(agent, steps, 0.9)
        init_key, key = jax.random.split(key)
        state = toys.with_hyper(agent.init(init_key), tau=0.2, huber_delta=100.0)

        def step(carry, _):
            key, update_key = jax.random.split(carry[1])
            state, metrics = agent.update(carry[0], batch, update_key)
            return (state, key), metrics["critic/value"]

        (state, _), values = jax.lax.scan(step, (state, key), None, 1500)
        return values[-1], agent.estimate(state, constant, action)

    both = jax.tree.map(lambda *x: jnp.stack(x), *flags.values())
    values, estimates = jax.jit(jax.vmap(learn))(*both, jax.random.split(jax.random.key(0), 2))
    np.testing.assert_allclose(values, [10.0, 1.0 / 0.325], rtol=0.02)
    # What the agent says of itself is the same, for observations with any leading axes.
    np.testing.assert_allclose(estimates, np.broadcast_to(values[:, None, None], (2, *flag.shape)), rtol=0.02)


@cases
def test_a_one_step_task_is_learned(name, kind):
    """The best action depends on the observation; anything that ignores either, or the reward, stays below the bound."""
    fields = {"epochs": 4, "minibatches": 4, "initial_temperature": 1e-3, "initial_std": 0.5}
    # A distribution of values is learned more slowly than their mean, and on a support that fits the rewards.
    fields |= {"value_min": -4.0, "value_max": 4.0, "num_bins": 21}
    iterations = 1200 if hasattr(agents.config_class(name), "num_bins") else 400
    # On-policy, an action that pays less is tried again by chance: a step that stays large ends anywhere near the best.
    updates = iterations * fields["epochs"] * fields["minibatches"]
    on_policy = agents.is_on_policy(name)
    optimizer = optax.adam(optax.linear_schedule(3e-3, 0.0, updates) if on_policy else 3e-3)
    agent = toys.make(name, kind, optimizer, hidden_sizes=(32,), **fields)

    def score(state, key, explore):
        observation = jnp.stack([jnp.ones((64, 3)), -jnp.ones((64, 3))])
        return jnp.mean(toys.one_step_reward(kind, observation, agent.act(state, observation, key, explore)))

    def run(key):
        init_key, before_key, learn_key, after_key = jax.random.split(key, 4)
        state = agent.init(init_key)
        before = score(state, before_key, True)
        return before, score(toys.one_step_loop(agent, kind, iterations, state, learn_key), after_key, False)

    before, after = jax.jit(run)(jax.random.key(0))
    assert float(before) < -0.2 and float(after) > -0.03


@cases
def test_images_and_scalars_are_observed(name, kind):
    """Shapes only: an image goes through convolutions, anything else is flattened."""
    for space in (Box(0, 255, (36, 36, 2), np.uint8), Box(-1.0, 1.0, ()), Box(-1.0, 1.0, (2, 3))):
        agent = toys.make(name, kind, observations=space, normalise_observations=False)
        rollout = toys.experience(kind)
        observation = np.zeros((toys.T, toys.N, *space.shape), space.dtype)
        rollout = rollout._replace(observation=observation, next_observation=observation)
        state = jax.eval_shape(agent.init, jax.random.key(0))
        after, _ = jax.eval_shape(agent.update, state, toys.batch_for(agent, rollout), jax.random.key(1))
        assert after == state
        assert ("Conv_0" in str(state.params)) == (len(space.shape) == 3)


def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message and len(message) < 250
    return message


@pytest.mark.parametrize("name", agents.names())
def test_wrong_spaces_are_refused_in_one_line(name):
    kind = next(kind for other, kind in toys.CASES if other == name)
    for other in toys.ACTIONS:
        if (name, other) not in toys.CASES:
            with pytest.raises(UsageError) as error:
                toys.make(name, other)
            assert name in one_line(error) and "; use " in one_line(error)
    for space in ({"a": toys.OBSERVATIONS}, toys.ACTIONS["discrete"]):
        with pytest.raises(UsageError, match=f"{name} needs observations that are one array") as error:
            toys.make(name, kind, observations=space)
        one_line(error)
    with pytest.raises(UsageError, match="not for images"):
        toys.make(name, kind, observations=Box(0, 255, (8, 8, 1), np.uint8), normalise_observations=True)


@pytest.mark.parametrize("name", agents.names())
def test_bad_configurations_are_refused_before_anything_compiles(name):
    kind = next(kind for other, kind in toys.CASES if other == name)
    with pytest.raises(UsageError, match=r"discount 1.01 is not within \[0.0, 1.0\]; the nearest that works is 1.0"):
        toys.make(name, kind, discount=1.01)
    with pytest.raises(UsageError, match=r"(hidden_sizes \(8, 0\)|width 0) cannot work; it must be at least 1"):
        toys.make(name, kind, hidden_sizes=(8, 0))
    with pytest.raises(UsageError, match="did you mean 'tanh'"):
        toys.make(name, kind, activation="tahn")
    with pytest.raises(UsageError, match="learning_rate nan cannot work"):
        toys.make(name, kind, learning_rate=float("nan"), critic_learning_rate=float("nan"))


@pytest.mark.parametrize("name", agents.names())
def test_configurations_are_hashable_and_every_field_says_what_it_is(name):
    import inspect

    import tyro

    config = agents.config_class(name)
    assert hash(config()) == hash(config()) and config() == config()
    source = "".join(inspect.getsource(part) for part in config.__mro__ if dataclasses.is_dataclass(part))
    assert source.count('"""') == 2 * len(config.__dataclass_fields__)
    assert tyro.cli(config, args=["--discount", "0.5"]).discount == 0.5


def test_unknown_agents_are_refused():
    with pytest.raises(UsageError, match="unknown agent 'ppoo'; did you mean 'ppo'"):
        agents.make_agent("ppoo", toys.OBSERVATIONS, toys.ACTIONS["box"])
    with pytest.raises(UsageError, match="expected an agent's name or configuration, got 3"):
        agents.make_agent(3, toys.OBSERVATIONS, toys.ACTIONS["box"])
    assert agents.make_agent("sac", toys.OBSERVATIONS, toys.ACTIONS["box"]).name == "sac"
