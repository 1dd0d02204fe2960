"""Sums over non-negative masses, kept as a shallow tree: draw in proportion to mass, and change masses, in O(log n).

A tree is a tuple of float32 arrays. The first holds the masses; each entry of the next is the sum of ``RADIX`` entries
of the one below it; the last has at most ``RADIX`` entries, the children of the root. A wide node costs one contiguous
read where a binary tree costs four dependent ones.

Sums are always taken anew from the children, never adjusted by a difference, so rounding does not accumulate however
many updates there are. A draw never ends at a leaf of mass 0: a node adds up its children from left to right, so a child
of mass 0 leaves the running sum as it is, bit for bit, and no number lies between the two.
"""

import jax
import jax.numpy as jnp

from jaxrl.types import Array, Key

RADIX = 16
# A float32 in [0, 1) has 2^24 values at best. One is spent on at most three levels, 4096 nodes; further down a fresh one
# is drawn, so that a tree of 2^20 leaves and more is drawn from exactly.
LEVELS_PER_DRAW = 3

Tree = tuple[Array, ...]


def init(leaves: int) -> Tree:
    """A tree of so many leaves, all of mass 0."""
    levels = []
    while True:
        padded = -(-leaves // RADIX) * RADIX
        levels.append(jnp.zeros(padded, jnp.float32))
        leaves = padded // RADIX
        if leaves == 1:
            return tuple(levels)


def total(tree: Tree) -> Array:
    """The mass of all leaves. float32 []."""
    return jnp.sum(tree[-1])


def build(masses: Array) -> Tree:
    """The tree over given masses ``[n]``; O(n)."""
    tree = init(masses.shape[0])
    levels = [tree[0].at[: masses.shape[0]].set(masses)]
    for level in tree[1:]:
        sums = jnp.sum(_nodes(levels[-1]), axis=1)
        levels.append(level.at[: sums.shape[0]].set(sums))
    return tuple(levels)


def update(tree: Tree, leaf: Array, mass: Array) -> Tree:
    """Set leaves ``[M]`` to masses ``[M]``. A leaf out of range is left out; a leaf named twice must get one mass."""
    levels = [tree[0].at[leaf].set(mass, mode="drop")]
    node = jnp.minimum(leaf, tree[0].shape[0] - 1)
    for level in tree[1:]:
        node = node // RADIX
        levels.append(level.at[node].set(jnp.sum(_children(levels[-1], node), axis=1), mode="promise_in_bounds"))
    return tuple(levels)


def update_range(tree: Tree, start: Array, mass: Array, leaves: int) -> Tree:
    """Set the leaves from ``start`` on to masses ``[M]``, going on at 0 after leaf ``leaves - 1``. Needs M <= leaves."""
    length = mass.shape[0]
    index = (start + jnp.arange(length, dtype=jnp.int32)) % leaves
    levels = [tree[0].at[index].set(mass, unique_indices=True, mode="promise_in_bounds")]
    for level in tree[1:]:
        padding = levels[-1].shape[0] - leaves
        # Nodes touched by a run that may begin and end inside a node, and jumps over the padding where it wraps.
        leaves = levels[-1].shape[0] // RADIX
        length = min((length + padding + 2 * (RADIX - 1)) // RADIX, leaves)
        start = start // RADIX
        node = (start + jnp.arange(length, dtype=jnp.int32)) % leaves
        sums = jnp.sum(_children(levels[-1], node), axis=1)
        levels.append(level.at[node].set(sums, unique_indices=True, mode="promise_in_bounds"))
    return tuple(levels)


def draw(tree: Tree, key: Key, batch_size: int) -> Array:
    """Leaves in proportion to mass, with replacement. int32 [B], ascending where strata lie in different nodes.

    Stratified: the total mass is cut into ``batch_size`` equal parts, one draw from each, down to nodes three levels
    below the root; the draws within a node are independent. Where all masses are 0 the result means nothing.
    """
    node = jnp.zeros((batch_size,), jnp.int32)
    for depth, level in enumerate(reversed(tree)):
        if depth % LEVELS_PER_DRAW == 0:
            key, uniform_key = jax.random.split(key)
            fraction = jax.random.uniform(uniform_key, (batch_size,))
            if depth == 0:
                fraction = (jnp.arange(batch_size, dtype=jnp.float32) + fraction) / batch_size
        node, fraction = _choose(level, node, fraction)
    return node


def _choose(level: Array, node: Array, fraction: Array) -> tuple[Array, Array]:
    """The child of each node ``[B]`` that holds ``fraction`` of its mass to the left, and the fraction left in it."""
    children = _children(level, node).T
    # A loop, because XLA would otherwise merge all levels into one program that works out everything many times over.
    mass, below = jax.lax.scan(lambda below, child: (below + child, below), jnp.zeros_like(fraction), children)
    target = jnp.minimum(fraction * mass, jnp.nextafter(mass, jnp.zeros_like(mass)))
    # Where masses of 0 make sums equal, the last of them counts, and that is the child with mass.
    child = jnp.maximum(jnp.sum(below <= target, axis=0, dtype=jnp.int32) - 1, 0)
    mass = jnp.take_along_axis(children, child[None], axis=0)[0]
    rest = target - jnp.take_along_axis(below, child[None], axis=0)[0]
    return node * RADIX + child, jnp.where(mass > 0, rest / jnp.where(mass > 0, mass, 1.0), 0.0)


def _nodes(level: Array) -> Array:
    return level.reshape(-1, RADIX)


def _children(level: Array, node: Array) -> Array:
    return _nodes(level).at[node].get(mode="promise_in_bounds")
