"""Diagnostics inside the compiled step: an agent whose every update also measures itself, and what is replayed. Off unless
asked for.

:func:`diagnosed` works for any agent, because it needs nothing but the contract: what ``act`` runs is seen by intercepting its layers, and
what an update changed by comparing the parameters. Training is not changed by it, not by a bit.
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.agents.base import Agent
from jaxrl.analysis import diagnostics
from jaxrl.errors import UsageError
from jaxrl.samplers.base import SampleInfo
from jaxrl.types import Array, Key, Metrics, PyTree

TENTHS = 10
TAU = 0.025  # share of a layer's mean activity below which a unit counts as dormant (Sokar et al. 2023)


def diagnosed(agent: Agent, rows: int = 256) -> Agent:
    """The same agent, with metrics of itself beside its own.

    * ``diagnostics/dormant/LAYER`` and ``…/all``: share of dormant units of the network that acts, among those that a layer
      reads;
    * ``diagnostics/effective_rank`` and ``diagnostics/stable_rank``: of the features its last layer reads;
    * ``diagnostics/weight_norm/PART`` and ``diagnostics/update_norm/PART``: norm of the parameters, and of what the update
      changed in them, for each of ``params``' parts.

    Args:
        rows: observations of the batch that the layers are measured on; more make ranks dearer.
    Raises:
        UsageError: for less than two rows, of which no rank can be told.
    """
    if rows < 2:
        raise UsageError(f"rows {rows} cannot work; ranks need at least 2 observations, 256 are usual")
    return agent._replace(update=partial(_update, agent, rows))


def replay_ages(num_envs: int, info: SampleInfo, size: Array) -> Metrics:
    """How old a drawn batch is: for the ``watch`` of :func:`jaxrl.training.off_policy`, with ``num_envs`` bound.

    Args:
        size: rows stored over all lanes.

    Returns:
        ``diagnostics/replay_age/tenth_1`` (the newest tenth of what a lane holds) to ``…/tenth_10``, the share of the
        batch that fell into each, and ``diagnostics/replay_age/mean`` as a share of all ages.
    """
    rows = jnp.maximum(size // num_envs, 1)
    shares = diagnostics.replay_age_histogram(info.age, TENTHS, rows)
    measured = {f"tenth_{k + 1}": shares[k] for k in range(TENTHS)}
    measured["mean"] = jnp.mean(info.age.astype(jnp.float32)) / rows
    return {f"diagnostics/replay_age/{name}": value for name, value in measured.items()}


def activations(agent: Agent, state: PyTree, observation: PyTree) -> dict[str, Array]:
    """What every layer but the first reads when the agent acts on observations [B, *shape]: layer -> [B, units].

    That is what the layer before it said, after its activation and any normalisation; of several layers that read the
    same, it is under the name of the first.
    """
    read: dict[str, Array] = {}

    def record(run, args, kwargs, context):
        if context.method_name == "__call__" and type(context.module).__name__.endswith("Dense"):
            read["/".join(context.module.path)] = args[0]
        return run(*args, **kwargs)

    with nn.intercept_methods(record):
        agent.act(state, observation, jax.random.key(0), False)  # deterministic, so the key decides nothing
    first = next(iter(read), None)
    # Several heads read the same features, which count once.
    once = {id(value): name for name, value in reversed(read.items())}
    return {name: value for name, value in read.items() if name != first and once[id(value)] == name}


def _update(agent: Agent, rows: int, state: PyTree, batch: PyTree, key: Key) -> tuple[PyTree, Metrics]:
    new, metrics = agent.update(state, batch, key)
    leading = 2 if agent.on_policy else 1
    observation = jax.tree.map(lambda x: x.reshape(-1, *x.shape[leading:])[:rows], batch.observation)
    measured = dict(_layers(activations(agent, new, observation)))
    changed = jax.tree.map(lambda after, before: after - before, new.params, state.params)
    for part, weights in _parts(new.params).items():
        measured[f"weight_norm/{part}"] = diagnostics.global_norm(weights)
        measured[f"update_norm/{part}"] = diagnostics.global_norm(_parts(changed)[part])
    return new, metrics | {f"diagnostics/{name}": value for name, value in measured.items()}


def _layers(read: dict[str, Array]) -> Metrics:
    if not read:  # a network of one layer has no features
        return {}
    features = list(read.values())[-1]
    ranks = {name: getattr(diagnostics, name)(features) for name in ("effective_rank", "stable_rank")}
    return diagnostics.dormant_fractions(read, TAU) | ranks


def _parts(params: PyTree) -> dict[str, PyTree]:
    """``{"actor": …, "critic": …}`` where the parameters are such a dict, else all as one part."""
    return params if isinstance(params, dict) and "params" not in params else {"all": params}
