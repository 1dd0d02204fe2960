"""Refusals that every package shares."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import checks
from jaxrl.errors import UsageError


@pytest.mark.parametrize(
    ("value", "said"), [(0, "at least 1, got 0"), (True, "got True"), (2.0, "whole"), ("3", "whole")]
)
def test_counts(value, said):
    with pytest.raises(UsageError, match=said):
        checks.positive_int(value, "steps")
    assert checks.positive_int(np.int64(3), "steps") == 3 and checks.int_from(0, "burn-in", 0) == 0


def test_numbers_that_are_not_finite_are_told_with_their_place_where_they_are_known():
    array = jnp.zeros((2, 3)).at[1, 2].set(jnp.inf)
    with pytest.raises(UsageError, match=r"data holds inf at \[1, 2\] \(1 such numbers\)"):
        checks.check_finite("data", jnp.ones(3), array)
    jax.jit(lambda x: checks.check_finite("data", x))(array)  # nothing is known inside
    checks.check_finite("counts", jnp.arange(3))


def test_leaves_are_told_by_path_and_shape():
    wanted = {"a": jax.ShapeDtypeStruct((2,), jnp.float32), "b": [jnp.ones((1, 3))]}
    checks.check_shapes("it", wanted, {"a": np.ones(2), "b": [np.ones((1, 3), int)]})
    for given, said in [
        ({"a": np.ones(2)}, r"it needs b/0 of shape \(1, 3\), got a"),
        ({"a": np.ones(3), "b": [np.ones((1, 3))]}, r"it needs a of shape \(2,\), got \(3,\)"),
        ({"a": np.ones(2), "b": [np.ones((1, 3)), np.ones(1)]}, "it takes a, b/0, got also b/1"),
        (np.ones(2), "got one array"),
        ({}, "got nothing"),
    ]:
        with pytest.raises(UsageError, match=said):
            checks.check_shapes("it", wanted, given)


@dataclass(frozen=True)
class Config:
    rate: float = 0.1
    bound: float = float("inf")
    sizes: tuple[float, ...] = (1.0,)
    name: str = "nan"


def test_settings_are_finite_unless_infinity_is_the_default():
    checks.check_numbers("it", Config())
    for config, said in [
        (Config(rate=float("nan")), "rate nan"),
        (Config(rate=float("inf")), "rate inf"),
        (Config(bound=float("nan")), "bound nan"),
        (Config(sizes=(1.0, float("inf"))), "sizes"),
    ]:
        with pytest.raises(UsageError, match=f"it: {said}"):
            checks.check_numbers("it", config)
