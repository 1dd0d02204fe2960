import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxrl.agents.common import shuffled


@pytest.mark.parametrize("size", [1, 2, 7, 4096, 16_384, 16_385])
def test_an_order_has_every_row_once_and_another_key_another_order(size):
    orders = [np.asarray(shuffled(jax.random.key(seed), size)) for seed in (0, 1)]
    for order in orders:
        assert order.dtype == np.int32
        np.testing.assert_array_equal(np.sort(order), np.arange(size))
    assert size < 3 or not np.array_equal(*orders)


def test_every_row_comes_to_every_place_equally_often():
    orders = jax.vmap(lambda key: shuffled(key, 6))(jax.random.split(jax.random.key(0), 6000))
    counts = np.asarray(jnp.sum(jax.nn.one_hot(orders, 6), 0))  # [place, row], each 1,000 on average
    assert counts.sum() == 36_000
    # A sum of squares over 36 cells of which rows and columns are fixed: 25 degrees of freedom.
    assert stats.chi2.sf(np.sum((counts - 1000) ** 2 / 1000) * 5 / 6, 25) > 1e-3
