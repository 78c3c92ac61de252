"""How far one record moves a clipped sum as it is returned: never above ``.sensitivity``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import mostly_ci

import dpjax
from dpjax import transforms
from dpjax.accounting import records_moved
from dpjax.derivatives import (
    clipped_grad,
    clipped_grad_difference,
    clipped_hessian,
    joint_clipped,
    rounding,
    subspace_clipped,
)

pytestmark = pytest.mark.optimised

CLIP = 1 / 3  # float32 holds it no better than the sums of it


def linear(w, x):
    return w @ x


def quadratic(w, x):
    return x[0] * w @ w / 2


def neighbours(relation, values):
    """Pairs of rows and masks that differ in one record, at the ends and in between."""
    n = len(values)
    full = np.ones(n, bool)
    for size, place in ((n, 0), (n, n // 2), (n - 3, 7), (n - 8, n - 9), (n - 13, n // 3)):
        base = full.copy()
        base[size:] = False
        other, mask = values.copy(), base.copy()
        if relation == "replace_one":
            other[place] = -values[place]
        elif relation == "zero_out":
            mask[place] = False
        else:  # those behind the record move on
            other[place:-1] = values[place + 1 :]
            mask[size - 1] = False
        yield (values, base), (other, mask)


def movement(total, relation, values):
    """The largest distance of the sums of neighbours, taken in float64."""

    def summed(rows, mask):
        leaves = jax.tree.leaves(total(jnp.asarray(rows), jnp.asarray(mask)))
        return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in leaves])

    pairs = neighbours(relation, values)
    return max(np.linalg.norm(summed(*one) - summed(*other)) for one, other in pairs)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one", "add_or_remove_one"])
@pytest.mark.parametrize("n", mostly_ci([10**3, 10**4, 10**5, 10**6], [10**3, 10**6]))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_c58_no_record_moves_a_sum_by_more_than_its_sensitivity(dtype, n, relation):
    """All records point one way, with a norm that is rounded at every size of the sum."""
    with jax.enable_x64(dtype == np.float64):
        total = clipped_grad(linear, clip_norm=CLIP)
        params = jnp.zeros(1, dtype)
        values = np.full((n, 1), 10, dtype)
        moved = movement(lambda rows, mask: total(params, rows, mask), relation, values)
        assert total(params, values[:2]).dtype == dtype
    factor = records_moved(relation)
    assert moved <= total.sensitivity(relation, rows=n)
    # Planted: C alone, as if sums were not rounded. (Of few rows the clip's slack hides it.)
    few = dtype == np.float32 and n < 10**4
    assert few or (moved > CLIP * factor) == (dtype == np.float32)
    if relation != "add_or_remove_one":
        assert total.sensitivity(relation, rows=n) <= CLIP * (factor + 0.0021 + n * 1.2e-7)


MARGIN = dpjax.objectives.Objective(
    lambda w, example: -example[1] * (w @ example[0]), margin=lambda m: -m, name="linear"
)
SKETCH = jnp.ones((1, 1))
TOTALS = {
    "gradient, closed form": (
        clipped_grad(MARGIN, clip_norm=CLIP),
        lambda f, rows, mask: f(jnp.zeros(1), (rows, jnp.ones(len(rows))), mask),
    ),
    "gradient, records with weights": (
        clipped_grad(MARGIN.weighted(), clip_norm=CLIP),
        lambda f, rows, mask: f(jnp.zeros(1), (rows, jnp.ones((len(rows), 2))), mask),
    ),
    "gradient, every record by itself": (
        clipped_grad(linear, clip_norm=CLIP, method="per_example"),
        lambda f, rows, mask: f(jnp.zeros(1), rows, mask),
    ),
    "gradient by layers": (
        clipped_grad(linear, clip_norm=CLIP, per_layer=True),
        lambda f, rows, mask: f(jnp.zeros(1), rows, mask),
    ),
    "Hessian": (
        clipped_hessian(quadratic, clip_norm=CLIP),
        lambda f, rows, mask: f(jnp.zeros(1), rows, mask),
    ),
    "joint": (
        joint_clipped(quadratic, gradient_weight=1.0, hessian_weight=1.0, clip_norm=CLIP),
        lambda f, rows, mask: f(jnp.zeros(1), rows, mask),
    ),
    "difference": (
        clipped_grad_difference(quadratic, smoothness=CLIP),
        lambda f, rows, mask: f(jnp.ones(1), jnp.zeros(1), rows, mask),
    ),
    "subspace": (
        subspace_clipped(quadratic, gradient_weight=1.0, hessian_weight=1.0),
        lambda f, rows, mask: f(jnp.full(1, 1.5), rows, SKETCH, mask),
    ),
    "chain": (
        transforms.clip_and_sum(CLIP),
        lambda f, rows, mask: f.update(rows, f.init(None), mask=mask)[0],
    ),
}


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
@pytest.mark.parametrize("kind", TOTALS)
def test_c58_every_clipped_sum_has_the_sensitivity_of_what_it_returns(kind, relation):
    n, (total, call) = 100_000, TOTALS[kind]
    values = np.full((n, 1), 10, np.float32)
    moved = movement(lambda rows, mask: call(total, rows, mask), relation, values)
    public = {"distance": 1.0} if kind == "difference" else {}
    clip = 1.0 if kind == "subspace" else CLIP
    assert moved <= total.sensitivity(relation, rows=n, **public)
    if kind != "subspace":  # its C is 1, which float32 does hold
        assert moved > clip * records_moved(relation)
    assert total.sensitivity(relation, rows=n, **public) == rounding.sum_sensitivity(
        clip, relation, n
    )


@pytest.mark.parametrize("rows", [0, -1, 1.5, None])
def test_c58_rows_are_a_number_of_rows(rows):
    with pytest.raises(ValueError, match="rows must be"):
        clipped_grad(linear, clip_norm=1.0).sensitivity("zero_out", rows=rows)
