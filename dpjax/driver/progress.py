"""``run``: the same training from the host, with a progress bar."""

import contextlib
import dataclasses
import functools
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple, TextIO, cast

import jax
from rich import progress as _rich
from rich.console import Console

from dpjax._typing import Array, Params, PyTree
from dpjax.accounting import Ledger
from dpjax.algorithms import Algorithm, Status
from dpjax.datasets import Dataset
from dpjax.driver import loop, resume
from dpjax.driver.configuration import drop_outdated
from dpjax.driver.keys import check_unclaimed, claim, guessable, root_key
from dpjax.driver.solution import Solution
from dpjax.oracles import check_examples

# How often the bar moves; each is one more entry into the compiled loop.
_UPDATES = 64
_TRIAL_STEPS = 4


class Watch(NamedTuple):
    """Someone who looks at iterates while a run goes on.

    Privacy: every iterate is released, so whatever is done with one is post-processing.
    """

    steps: frozenset[int]
    """After how many steps; 0 is the start."""
    look: Callable[[int, Params], str]
    """``look(step, params) -> words`` for the bar. A resumed run may look at a step again."""
    title: str
    """What the bar says before them."""


def run(
    algorithm: Algorithm,
    data: Dataset | PyTree,
    *,
    key: Array | None = None,
    seed: int | None = None,
    params: Params | None = None,
    progress: bool | None = None,
    checkpoint: str | os.PathLike | None = None,
    ledger: Ledger | str | os.PathLike | None = None,
    label: str | None = None,
    watch: Watch | None = None,
) -> Solution:
    """Runs the training of ``solve`` in pieces: a progress bar, a checkpoint, a line in a ledger.

    Args:
      algorithm: as in ``solve``.
      data: as in ``solve``.
      key: as in ``solve``; without key and seed ``checkpoint`` is resumed with its own.
      seed: as in ``solve``.
      params: as in ``solve``.
      progress: True or False; None shows the bar on a terminal only.
      checkpoint: folder to save the run in, made if it is absent. If it holds one, that run goes on
        from where it is, or gives its solution again, bit for bit as if never interrupted, and
        spends nothing more. It holds the key: SECRET, readable by its owner alone.
      ledger: a ``Ledger`` or its file. The run's intent is on the disk before the data are asked
        anything, and a run that does not fit the budget is refused.
      label: your word for the data, for the ledger; by default the data set's name.
      watch: who is shown the output so far, at which steps, as ``fit`` does for held-out data.

    Returns:
      The same ``Solution`` as ``solve``; a run that ended in numbers that are not finite warns.

    Raises:
      ValueError: as ``solve``, or for a budget that the ledger does not have.
      ResumeMismatch: if the run in ``checkpoint`` would not repeat itself, naming what differs.
      LedgerError: for a ledger that is damaged, in use, or behind the checkpoint.
      KeyboardInterrupt: on Ctrl-C; the checkpoint is saved, the budget is spent.

    Privacy: as ``solve``; the bar shows step numbers and time. What a crash interrupts stays spent.

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
    for query in algorithm.queries:
        check_examples(query, examples, params)
    drop_outdated(algorithm.objective, examples, params)
    shown = bool(sys.stderr) and (sys.stderr.isatty() if progress is None else progress)
    resuming = key is None and seed is None and checkpoint is not None
    root = None if resuming else root_key(key, seed)
    known = seed is not None or (root is not None and guessable(root))
    chosen = resume.Chosen(root, known)
    with resume.journal(algorithm, data, chosen, params, checkpoint, ledger, label) as journal:
        bound, carry = _start(algorithm, examples, journal.key, params)
        if not journal.resumed:
            check_unclaimed(journal.key)
        carry = journal.begin(carry)
        claim(journal.key)
        steps = int(algorithm.steps)
        watched = _Watched(algorithm, watch)
        with _bar(shown) as bar:
            task = bar.add_task(watched.words(carry), total=steps)
            for until in _visits(int(carry.step), steps, watched.steps):
                carry = _advance(bound, carry, until)
                done = int(carry.step)
                journal.save(carry)
                bar.update(task, completed=done, description=watched.words(carry))
                if done < until:
                    break
        journal.end(carry)
        solution = jax.block_until_ready(_finish(bound, carry, unit=unit, unit_rows=unit_rows))
        journal.complete()
    if int(solution.status) == Status.NOT_FINITE:
        warnings.warn(Status.NOT_FINITE.message, RuntimeWarning, stacklevel=2)
    return dataclasses.replace(solution, reproducible=journal.reproducible)


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
    bound = loop.bind_training(algorithm, examples, key, params)
    return bound, loop.start(bound, params)


def _visits(begin: int, steps: int, watched: frozenset[int]) -> list[int]:
    """Returns the steps after which the host looks: evenly for the bar, and where one watches."""
    piece = max(1, -(-steps // _UPDATES))
    every = {*range(begin + piece, steps, piece), *watched, steps}
    return sorted(step for step in every if begin < step <= steps)


class _Watched:
    """What the bar says; the watch is called where it is due."""

    def __init__(self, algorithm: Algorithm, watch: Watch | None):
        self._algorithm, self._watch, self._seen = algorithm, watch, ""
        self.steps = frozenset() if watch is None else watch.steps

    def words(self, carry: loop.Carry) -> str:
        if self._watch is None:
            return self._algorithm.title
        if (step := int(carry.step)) in self.steps:
            self._seen = self._watch.look(step, _output(self._algorithm, carry.state))
        return ", ".join(filter(None, (self._watch.title, self._seen)))


_output = jax.jit(lambda algorithm, state: algorithm.output(state))
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
