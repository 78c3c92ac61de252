"""``run``: the same training from the host, with a progress bar."""

import bisect
import contextlib
import functools
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax

from dpjax._typing import Array, Params, PyTree
from dpjax._wide import on_device
from dpjax.accounting import Event, Ledger, epsilon
from dpjax.algorithms import Algorithm, Status, with_canaries
from dpjax.datasets import Dataset
from dpjax.display.bar import Bar, patient
from dpjax.display.cards import ceil
from dpjax.driver import loop, resume
from dpjax.driver.keys import ADVICE, root_key
from dpjax.driver.prepare import Training, prepare, starting_point
from dpjax.mechanisms.keys import claimed
from dpjax.placement.shard import replicate, to_host
from dpjax.placement.stream import rows_read
from dpjax.results.solution import Solution

# How often the bar moves at least; each is one more entry into the compiled loop.
_UPDATES = 64
# Ctrl-C is seen between two entries: one takes about this long, or one step where that is longer.
_PIECE_SECONDS = 0.2
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
    part: str | None = None,
    watch: Watch | None = None,
    canaries: int | None = None,
) -> Solution:
    """Runs the training of ``solve`` in pieces: a progress bar, a checkpoint, a line in a ledger.

    Args:
      algorithm: made by a factory such as ``dp_trust_region``.
      data: a ``Dataset`` or a pytree of arrays, see ``solve``.
      key: ``dpjax.random_key()``; without key and seed ``checkpoint`` is resumed with its own.
      seed: in place of a key, for research that can be repeated and is not for release.
      params: public starting point; by default zeros.
      progress: None shows a bar on a terminal and in a notebook; True elsewhere too, where it is a
        line a minute on standard error; False nowhere.
      checkpoint: folder to save the run in, made if it is absent. If it holds one, that run goes on
        from where it is, or gives its solution again, bit for bit as if never interrupted, and
        spends nothing more. It holds the key: SECRET, readable by its owner alone.
      ledger: a ``Ledger`` or its file. The run's intent is on the disk before the data are asked
        anything, and a run that does not fit the budget is refused.
      label: your word for the data, for the ledger; by default the data set's name.
      part: the declared part of the ledger's data that ``data`` are, see ``Ledger.of``.
      canaries: how many made-up records the run attacks itself with, see
        ``algorithms.with_canaries``; the bound on epsilon is ``solution.audit()``.
      watch: who is shown the output so far, at which steps, as ``fit`` does for held-out data.

    Returns:
      The same ``Solution`` as ``solve``; a run that ended in numbers that are not finite warns.

    Raises:
      ValueError: as ``solve``, or for a budget that the ledger does not have.
      ResumeMismatch: if the run in ``checkpoint`` would not repeat itself, naming what differs.
      LedgerError: for a ledger that is damaged, in use, or behind the checkpoint.
      KeyboardInterrupt: on Ctrl-C, when the step is done; the checkpoint is saved, the budget is
        spent.

    Privacy: as ``solve``; the bar shows step numbers, time, the epsilon of the steps so far and,
      where n is public, records a second. Who stops a run for what it shows may claim the epsilon
      of all steps alone. What a crash interrupts stays spent.

    >>> import jax, jax.numpy as jnp, dpjax
    >>> budget = dpjax.PrivacyBudget(epsilon=1.0, delta=1e-3)
    >>> algorithm = dpjax.dp_gradient_descent(
    ...     dpjax.objectives.logistic(), budget, data_size=50, dimension=2, steps=4)
    >>> x = jnp.ones((50, 2)) / 2 ** 0.5
    >>> int(run(algorithm, (x, jnp.ones(50)), key=jax.random.key(0)).steps)
    4
    """
    algorithm = algorithm if canaries is None else with_canaries(algorithm, canaries)
    resuming = key is None and seed is None and checkpoint is not None
    root = None if resuming else root_key(key, seed)
    training = prepare(algorithm, data, root, params, seeded=seed is not None)
    kept = resume.RunFiles(checkpoint, ledger, label, part).named(training.data)
    with training.open_readers(), resume.journal(training, kept) as journal:
        # Only the checkpoint of a resumed run knows if its key came from a seed.
        training = replace(training, reproducible=journal.reproducible)
        begun = journal.reached
        start_at = replicate((begun.key, training.params), training.records)
        with patient():
            bound, carry = _start(algorithm, training.records, *start_at)
        # Claimed by name, because the resumed part of a run uses the key of the first part again.
        with claimed(begun.key, ADVICE, owner=begun.run_id):
            # This writes the intent to the disk; only then may a step ask.
            carry = journal.begin(carry)
        carry = _walked(training, bound, carry, journal, progress, watch)
        # The queries at the end depend on this carry and the key alone, so an interrupted end is
        # asked again with the same noise.
        journal.end(carry)
        solution = to_host(loop.finish(bound, carry, **training.unit_of_privacy))
        # JAX returns before it has computed, and a run is complete only afterwards.
        jax.block_until_ready(solution)
        journal.complete()
    if int(solution.status) == Status.NOT_FINITE:
        warnings.warn(Status.NOT_FINITE.message, RuntimeWarning, stacklevel=2)
    return training.settled(solution, kept.part)


def _walked(
    training: Training,
    bound: loop.BoundAlgorithm,
    carry: loop.Carry,
    journal: resume.Journal,
    progress: bool | None,
    watch: Watch | None,
) -> loop.Carry:
    """Returns the carry after the last step; after each piece it is saved, shown and looked at."""
    shown = progress if training.team.leads else False
    steps = int(bound.algorithm.steps)
    watched = _Watched(training.algorithm, watch)
    begun = time.monotonic()
    with Bar(watched.words(carry), steps, shown=shown) as bar:
        # If a stopping rule ends the run, ``done`` stays below ``until`` and the loop ends.
        pace, done, until = _Pace(steps, watched.steps), int(carry.step), 0
        bar.update(done)  # a run that is resumed does not begin at 0
        while until <= done < steps:
            # Clocks differ, and all processes must enter the loop up to the same step.
            until = training.team.from_first(functools.partial(pace.next, done))
            try:
                with patient():
                    carry = _advance(bound, carry, until)
                # Reading the step waits for the device, so Ctrl-C mostly arrives here.
                done = int(carry.step)
            except KeyboardInterrupt:
                # JAX stops waiting, and not what it waits for: an end of Python amid it may crash.
                jax.block_until_ready(carry)
                raise
            journal.save(carry)
            words = watched.spent(done) if bar.shown else ""
            bar.update(done, watched.words(carry) + words + _rate(training, begun))
    return carry


def seconds_per_step(algorithm: Algorithm, examples: PyTree) -> float:
    """Returns the time of one step on ``examples``, measured over a few, after compiling.

    They are made-up records; the real ones would be asked, which spends budget.
    """
    params = starting_point(algorithm, None)
    bound, carry = _start(algorithm, on_device(examples), jax.random.key(0), params)
    few = min(_TRIAL_STEPS, int(algorithm.steps))
    jax.block_until_ready(_advance(bound, carry, few))
    begin = time.perf_counter()
    jax.block_until_ready(_advance(bound, carry, few))
    return (time.perf_counter() - begin) / few


def bytes_of_step(algorithm: Algorithm, examples: PyTree, params: Params) -> int | None:
    """Returns the memory of a step, of shapes, by the compiler's count; nothing is computed."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    begun = jax.eval_shape(_start, algorithm, examples, key, params)
    used = _advance.lower(*begun, algorithm.steps).compile().memory_analysis()
    return None if used is None else used.temp_size_in_bytes


@jax.jit
def _start(algorithm: Algorithm, examples: PyTree, key: Array, params: Params):
    bound = loop.bind_training(algorithm, examples, key, params)
    return bound, loop.start(bound, params)


def _rate(training: Training, begun: float) -> str:
    """How fast records come in, where they do, and their number is public."""
    # Rate times time is a number of passes times n, which under add_or_remove_one is private.
    private = training.algorithm.relation == "add_or_remove_one"
    read = 0 if private else rows_read(training.records)
    return f", {read / (time.monotonic() - begun):,.0f} records/s" if read else ""


class _Pace:
    """After which steps the host looks: evenly for the bar, where one watches, and for Ctrl-C."""

    def __init__(self, steps: int, watched: frozenset[int]):
        # A piece ends at every watched step, so that the watch sees the iterate after that very
        # step.
        self._stops = sorted({*watched, steps})
        self._most = max(1, -(-steps // _UPDATES))
        self._piece, self._asked = 1, time.monotonic()

    def next(self, done: int) -> int:
        """Returns the step to go on to."""
        spent = time.monotonic() - self._asked
        if done and spent < _PIECE_SECONDS / 2:
            self._piece = min(2 * self._piece, self._most)
        elif spent > _PIECE_SECONDS:
            self._piece = max(self._piece // 2, 1)
        self._asked = time.monotonic()
        return min(done + self._piece, self._stops[bisect.bisect_right(self._stops, done)])


class _Watched:
    """What the bar says; the watch is called where it is due."""

    def __init__(self, algorithm: Algorithm, watch: Watch | None):
        self._algorithm, self._watch, self._seen = algorithm, watch, ""
        self._due, self._spent = 0.0, ""
        self.steps = frozenset() if watch is None else watch.steps

    def words(self, carry: loop.Carry) -> str:
        if self._watch is None:
            return self._algorithm.title
        if (step := int(carry.step)) in self.steps:
            params = to_host(_output(self._algorithm, carry.state))
            self._seen = self._watch.look(step, params)
        return ", ".join(filter(None, (self._watch.title, self._seen)))

    def spent(self, done: int) -> str:
        """The epsilon of the steps so far, at most: what is not asked at each counts in full."""
        begin, steps, algorithm = time.monotonic(), int(self._algorithm.steps), self._algorithm
        if begin >= self._due or done >= steps:
            releases = algorithm.event.releases
            taken = (replace(r, count=done) if r.count == steps else r for r in releases)
            # Ball noise alone, and a delta that is too small for what is charged, have no epsilon.
            with contextlib.suppress(ValueError):
                event, delta = Event(tuple(taken), algorithm.relation), algorithm.declared.delta
                found = epsilon(event, float(delta), event.relation, algorithm.accountant)
                self._spent = f", epsilon {ceil(found, 3)} so far"
            # Accounting takes a twentieth of the time at most.
            self._due = time.monotonic() + 20 * (time.monotonic() - begin)
        return self._spent


_output = jax.jit(lambda algorithm, state: algorithm.output(state))
_advance = jax.jit(loop.advance)
