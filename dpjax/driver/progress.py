"""``run``: the same training from the host, with a progress bar."""

import contextlib
import functools
import sys
import time
import warnings
from typing import TextIO, cast

import jax
from rich import progress as _rich
from rich.console import Console

from dpjax._typing import Array, Params, PyTree
from dpjax.algorithms import Algorithm, Status
from dpjax.datasets import Dataset
from dpjax.driver import loop
from dpjax.driver.solution import Solution
from dpjax.mechanisms import as_key
from dpjax.oracles import check_examples

# How often the bar moves; each is one more entry into the compiled loop.
_UPDATES = 64
_TRIAL_STEPS = 4


def run(
    algorithm: Algorithm,
    data: Dataset | PyTree,
    *,
    key: Array,
    params: Params | None = None,
    progress: bool | None = None,
) -> Solution:
    """Runs the training of ``solve`` in pieces, with a progress bar.

    Args:
      algorithm: as in ``solve``.
      data: as in ``solve``.
      key: as in ``solve``.
      params: as in ``solve``.
      progress: True or False; None shows the bar on a terminal only.

    Returns:
      The same ``Solution`` as ``solve``; a run that ended in numbers that are not finite warns.

    Raises:
      ValueError: as ``solve``.

    Privacy: as ``solve``; the bar shows step numbers and time.

    >>> import jax, jax.numpy as jnp, dpjax
    >>> budget = dpjax.PrivacyBudget(epsilon=1.0, delta=1e-3)
    >>> algorithm = dpjax.dp_gradient_descent(
    ...     dpjax.objectives.logistic(), budget, data_size=50, dimension=2, steps=4)
    >>> x = jnp.ones((50, 2)) / 2 ** 0.5
    >>> int(run(algorithm, (x, jnp.ones(50)), key=jax.random.key(0)).steps)
    4
    """
    examples, unit, unit_rows = loop.unpack(data)
    params = loop.starting_point(algorithm, params)
    key = as_key(key)
    for query in algorithm.queries:
        check_examples(query, examples, params)
    shown = bool(sys.stderr) and (sys.stderr.isatty() if progress is None else progress)
    bound, carry = _start(algorithm, examples, key, params)
    steps = int(algorithm.steps)
    piece = max(1, -(-steps // _UPDATES))
    with _bar(shown) as bar:
        task = bar.add_task(algorithm.title, total=steps)
        for until in range(piece, steps + piece, piece):
            carry = _advance(bound, carry, min(until, steps))
            done = int(carry.step)
            bar.update(task, completed=done)
            if done < min(until, steps):
                break
    solution = _finish(bound, carry, unit=unit, unit_rows=unit_rows)
    if int(solution.status) == Status.NOT_FINITE:
        warnings.warn(Status.NOT_FINITE.message, RuntimeWarning, stacklevel=2)
    return solution


def seconds_per_step(algorithm: Algorithm, examples: PyTree) -> float:
    """Returns the time of one step on ``examples``, measured over a few, after compiling.

    Args:
      algorithm: as in ``solve``.
      examples: made-up records; the real ones would be asked, which spends budget.
    """
    params = loop.starting_point(algorithm, None)
    bound, carry = _start(algorithm, examples, jax.random.key(0), params)
    few = min(_TRIAL_STEPS, int(algorithm.steps))
    jax.block_until_ready(_advance(bound, carry, few))
    begin = time.perf_counter()
    jax.block_until_ready(_advance(bound, carry, few))
    return (time.perf_counter() - begin) / few


@jax.jit
def _start(algorithm: Algorithm, examples: PyTree, key: Array, params: Params):
    bound = loop.Bound(algorithm, loop.bind_records(algorithm, examples), key)
    return bound, loop.start(bound, params)


_advance = jax.jit(loop.advance)
_finish = functools.partial(jax.jit, static_argnames=("unit", "unit_rows"))(loop.finish)


class _Quiet:
    """Standard error, if it is there; a bar that cannot be drawn must not cost the result."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()

    def isatty(self) -> bool:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return sys.stderr.isatty()
        return False


def _bar(shown: bool) -> _rich.Progress:
    return _rich.Progress(
        _rich.TextColumn("{task.description}"),
        _rich.BarColumn(),
        _rich.MofNCompleteColumn(),
        _rich.TimeElapsedColumn(),
        _rich.TextColumn("ETA"),
        _rich.TimeRemainingColumn(),
        console=Console(file=cast(TextIO, _Quiet())),
        disable=not shown,
    )
