"""NOT PRIVATE: one method at one epsilon, trained with every seed and held against raw data."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import Array, Params
from dpjax.accounting import epsilon
from dpjax.algorithms import Algorithm
from dpjax.algorithms.base import recount_accountant
from dpjax.datasets import Dataset
from dpjax.diagnostics import exact_accuracy
from dpjax.driver import loop
from dpjax.driver.asking import bind_records, bind_with_key
from dpjax.objectives import Objective
from dpjax.oracles import GradientQuery, MinimizerQuery
from dpjax.reproduce import exact

# A Hessian of so many rows keeps every core busy: seeds then gain nothing from vmap.
_BUSY_ROWS = 100_000
_POINTS_OF_A_TRACE = 12
# A descent on so many rows takes seconds.
_DESCENTS = 3


def measure(
    algorithm: Algorithm,
    data: Dataset,
    keys: Array,
    *,
    traced: bool = False,
    one_by_one: bool = False,
    advance: Callable[[int], None] = lambda seeds: None,
) -> dict[str, Any]:
    """Returns what one point of a figure is made of, as JSON has it.

    Args:
      algorithm: calibrated.
      data: margins and labels as JAX arrays, every row a valid record.
      keys: one per seed.
      traced: also record value and time along the way, and follow each output to the local minimum
        it lies at.
      one_by_one: train the seeds one after another, in one program less to compile.
      advance: told how many more seeds are done.

    Returns:
      ``values``, ``gradient_norms`` and ``accuracies`` by seed; ``steps``, ``passes`` over the
      data, and the ``epsilon`` that the noise gives. If traced ``local_values`` by seed (of large
      data the first few, then NaN), and ``trace`` with ``steps``, and ``values`` by step and seed;
      else None.

    Privacy: NOT PRIVATE.

    >>> import dpjax, jax.numpy as jnp
    >>> x, y = jnp.ones((50, 2)) / 2 ** 0.5, jnp.ones(50)
    >>> algorithm = dpjax.dp_trust_region(
    ...     dpjax.objectives.logistic(), dpjax.PrivacyBudget(1.0, 1e-3),
    ...     data_size=50, dimension=2, steps=4)
    >>> found = measure(algorithm, dpjax.Dataset(x, y), jax.random.split(jax.random.key(0), 3))
    >>> len(found["values"]), found["passes"]
    (3, 4.0)
    """
    objective, examples = algorithm.objective, data.examples
    at = checkpoints(int(algorithm.steps)) if traced else [int(algorithm.steps)]
    params = train_all(algorithm, data, keys, at, one_by_one=one_by_one, advance=advance)
    values, norms = exact.exact_values(objective, params[:, -1], examples)
    test = tested_on(data)
    return {
        "values": values.tolist(),
        "gradient_norms": norms.tolist(),
        "accuracies": [float(exact_accuracy(objective, one, *test)) for one in params[:, -1]],
        "steps": int(algorithm.steps),
        "passes": passes(algorithm),
        "epsilon": epsilon(
            algorithm.event,
            float(algorithm.declared.delta),
            algorithm.relation,
            recount_accountant(algorithm.accountant),
        ),
        "local_values": _local_values(objective, params[:, -1], examples) if traced else None,
        "trace": {
            "steps": at,
            "values": [
                exact.exact_values(objective, params[:, i], examples)[0].tolist()
                for i in range(len(at))
            ],
        }
        if traced
        else None,
    }


def train_all(
    algorithm: Algorithm,
    data: Dataset,
    keys: Array,
    at: list[int],
    *,
    one_by_one: bool = False,
    advance: Callable[[int], None] = lambda seeds: None,
) -> np.ndarray:
    """Returns the (seeds, len(at), p) parameters after the steps ``at``, as ``train`` does.

    Args:
      algorithm: calibrated.
      data: margins and labels as JAX arrays.
      keys: one per seed.
      at: step numbers, growing.
      one_by_one: train the seeds one after another; done too where one alone fills the machine.
      advance: told how many more seeds are done.
    """
    together = 1 if one_by_one or _busy(algorithm, data.size) else len(keys)
    pieces = []
    for first in range(0, len(keys), together):
        pieces.append(train(algorithm, data.examples, keys[first : first + together], at)[0])
        advance(len(pieces[-1]))
    return np.concatenate(pieces)


def _local_values(
    objective: Objective, params: np.ndarray, examples: exact.Examples
) -> list[float]:
    some = _DESCENTS if len(examples[1]) > _BUSY_ROWS else len(params)
    found = [exact.exact_descent(objective, one, examples)[1] for one in params[:some]]
    return found + [float("nan")] * (len(params) - len(found))


def tested_on(data: Dataset) -> tuple[Array, Array]:
    """Returns the records that accuracy is measured on: the test set, or else the training set.

    >>> import dpjax, jax.numpy as jnp
    >>> tested_on(dpjax.Dataset(jnp.ones((1, 1)), jnp.ones(1)))[0].shape
    (1, 1)
    """
    x, y = data.examples if data.test_x is None else (data.test_x, data.test_y)
    return jnp.asarray(x), jnp.asarray(y)


def seconds(algorithm: Algorithm, data: Dataset, key: Array) -> list[float]:
    """Returns the time of one training up to each of its ``checkpoints``, after compiling.

    Args:
      algorithm: calibrated.
      data: margins and labels as JAX arrays.
      key: of the training.

    >>> import dpjax, jax.numpy as jnp
    >>> x, y = jnp.ones((50, 2)) / 2 ** 0.5, jnp.ones(50)
    >>> algorithm = dpjax.dp_trust_region(
    ...     dpjax.objectives.logistic(), dpjax.PrivacyBudget(1.0, 1e-3),
    ...     data_size=50, dimension=2, steps=4)
    >>> len(seconds(algorithm, dpjax.Dataset(x, y), jax.random.key(0)))
    4
    """
    at = checkpoints(int(algorithm.steps))
    train(algorithm, data.examples, key[None], at)  # compiles
    return train(algorithm, data.examples, key[None], at)[1]


def checkpoints(steps: int) -> list[int]:
    """Returns step numbers, about evenly spaced on a logarithmic axis, the last being ``steps``.

    >>> checkpoints(32)
    [1, 2, 3, 4, 5, 7, 9, 12, 17, 23, 32]
    """
    spaced = np.geomspace(1, steps, _POINTS_OF_A_TRACE)
    return sorted({round(float(one)) for one in spaced})


def passes(algorithm: Algorithm) -> float:
    """Returns the declared gradients over n; a Hessian beside the gradient is no other pass.

    >>> import dpjax, jax.numpy as jnp
    >>> algorithm = dpjax.dp_trust_region(
    ...     dpjax.objectives.logistic(), dpjax.PrivacyBudget(1.0, 1e-3),
    ...     data_size=50, dimension=2, release="separate", certify=None)
    >>> passes(algorithm)
    32.0
    """
    return algorithm.evaluations.declared / algorithm.queries[0].data_size


def train(
    algorithm: Algorithm, examples: exact.Examples, keys: Array, at: list[int]
) -> tuple[np.ndarray, list[float]]:
    """Returns the parameters at each of the steps ``at``, and the time to get there.

    Args:
      algorithm: calibrated; its noise is that of the whole run wherever it is looked at.
      examples: the records.
      keys: one per seed; all are trained together.
      at: step numbers, growing.

    Returns:
      (seeds, len(at), p) parameters and the seconds since the start, of all seeds together.

    Privacy: the iterates are covered by the guarantee of the whole run.

    >>> import dpjax, jax.numpy as jnp
    >>> x, y = jnp.ones((50, 2)) / 2 ** 0.5, jnp.ones(50)
    >>> algorithm = dpjax.dp_trust_region(
    ...     dpjax.objectives.logistic(), dpjax.PrivacyBudget(1.0, 1e-3),
    ...     data_size=50, dimension=2, steps=4)
    >>> train(algorithm, (x, y), jax.random.split(jax.random.key(0), 3), [1, 4])[0].shape
    (3, 2, 2)
    """
    begin = time.perf_counter()
    records, own, carries = jax.block_until_ready(_start(algorithm, examples, keys))
    spent = time.perf_counter() - begin
    found, seconds = [], []
    for until in at:
        begin = time.perf_counter()
        carries = jax.block_until_ready(_advance(algorithm, records, own, carries, until))
        spent += time.perf_counter() - begin
        seconds.append(spent)
        found.append(np.asarray(jax.vmap(algorithm.output)(carries.state)))
    return np.stack(found, axis=1), seconds


@jax.jit
def _start(algorithm: Algorithm, examples: exact.Examples, keys: Array):
    params = loop.starting_point(algorithm, None)
    records = bind_records(algorithm, examples)

    def one(key: Array) -> tuple[Array, loop.Carry]:
        own = loop.own_key(key, algorithm, examples, params)
        return own, loop.start(bind_with_key(algorithm, records, own), params)

    return records, *jax.vmap(one)(keys)


@jax.jit
def _advance(algorithm: Algorithm, records: Params, own: Array, carries: loop.Carry, until: int):
    def one(key: Array, carry: loop.Carry) -> loop.Carry:
        return loop.advance(bind_with_key(algorithm, records, key), carry, until)

    return jax.vmap(one)(own, carries)


def _busy(algorithm: Algorithm, rows: int) -> bool:
    first_order = all(
        isinstance(query, GradientQuery | MinimizerQuery) for query in algorithm.queries
    )
    return rows > _BUSY_ROWS and not first_order
