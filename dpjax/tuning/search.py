"""``tune``: private random search over settings, whose whole cost is known."""

import dataclasses
import os
import time
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._program import sha256, trace
from dpjax._typing import Array, Params, PyTree
from dpjax.accounting import Ledger, PrivacyBudget
from dpjax.algorithms import Status
from dpjax.datasets import Dataset
from dpjax.display.bar import Bar
from dpjax.distributed import mesh_of
from dpjax.driver import fingerprint, loop
from dpjax.driver.asking import check_questions
from dpjax.driver.configuration import FUNCTION, Configuration
from dpjax.driver.keys import ADVICE, root_key
from dpjax.driver.prepare import Training, prepare, starting_point
from dpjax.driver.resume import Journal, RunFiles, journal
from dpjax.mechanisms.keys import claimed
from dpjax.placement.stream import is_streamed
from dpjax.tuning import trials as _trials
from dpjax.tuning.planning import SCORE_SHARE, Make, SearchPlan, Settings, plan
from dpjax.tuning.score import ACCURACY, checked_score
from dpjax.tuning.tuned import Tuned, searched

MEMORY = 2**30
"""Bytes that the records of the trainings made at once may take, if each had a copy of its own."""
# Between two movements of the bar, unless one step takes longer.
_PIECE_SECONDS = 0.5


def tune(
    make: Make,
    settings: Settings,
    data: Dataset | PyTree,
    budget: PrivacyBudget,
    *,
    key: Array | None = None,
    seed: int | None = None,
    trials: float = 10.0,
    cap: int | None = None,
    shape: float = 1.0,
    score: Any = ACCURACY,
    score_share: float = SCORE_SHARE,
    params: Params | None = None,
    memory_limit: int = MEMORY,
    progress: bool | None = None,
    checkpoint: str | os.PathLike | None = None,
    ledger: Ledger | str | os.PathLike | None = None,
    label: str | None = None,
    part: str | None = None,
) -> Tuned:
    """Trains with settings drawn at random and releases the best training; its cost is the budget.

    The number K of trainings is random and secret, and so are all trainings but one. Because of
    that the price hardly grows with the number of settings: at epsilon 1 and 10 expected trainings
    it is 1.6 times the noise of one training without a search, score included, where training 32
    settings and releasing all takes 6 times. ``plan`` prints both before anything is spent.

    ``cap`` trainings are always made, as one compiled program, so that neither time nor memory
    tells K.

    Args:
      make: ``make(budget, **setting) -> algorithm``: a factory with its objective and all other
        arguments, such as ``functools.partial(dpjax.dp_trust_region, objective, data_size=n,
        dimension=p)``.
      settings: name -> values, of which all combinations may be drawn, such as ``{"radius": [3, 6,
        12]}``; or a list of dictionaries. Numbers such as step sizes, radii, clip norms or the
        strength of a penalty, but nothing that changes the shape of a program, such as a batch
        size. Choose them without a look at the data.
      data: a ``Dataset`` or a pytree of arrays, in memory and on one device.
      budget: what the whole search may spend.
      key: ``dpjax.random_key()``, for one search.
      seed: in place of a key, for research that can be repeated and is not for release.
      trials: the expected number of trainings, above 1.
      cap: the largest number; by default four times ``trials``.
      shape: of the distribution of K, see ``accounting.NumberOfTrials``.
      score: what is largest for the best training. ``"accuracy"``: that on the training records, as
        ``with_accuracy`` releases it; ``PublicAccuracy(...)`` on public records; or a function of
        the released parameters, which may read public records and nothing else.
      score_share: of the epsilon of a training that a noisy accuracy spends.
      params: public starting point; by default zeros.
      memory_limit: bytes; fewer trainings are made at once where their records take more.
      progress: whether a bar is shown; None shows it on a terminal and in a notebook.
      checkpoint: folder to save the search in, as for ``run``: without key and seed the same call
        goes on from there, bit for bit, and spends nothing more. It holds all trainings and the
        key: SECRET.
      ledger: a ``Ledger`` or its file. It books the search before the data are asked anything, or
        refuses it.
      label: your word for the data, for the ledger; by default the data set's name.
      part: the declared part of the ledger's data that ``data`` are, see ``Ledger.of``.

    Returns:
      A ``Tuned``: the training with the largest score, its setting and its score.

    Raises:
      ValueError: before anything is spent, for arguments out of range, settings that need different
        programs, a loss without labels whose score is not given, a score that calls Python
        (``jax.debug.print`` and other callbacks), data on disk or on several devices, or as
        ``solve``.
      ResumeMismatch: if the search in ``checkpoint`` would not repeat itself.
      LedgerError: for a ledger that is damaged or in use.

    Privacy: the guarantee covers the whole search: all that is returned, and with it that nothing
      is told of the other trainings. It takes ``settings``, ``make`` and the records of a public
      score to be public. Time is covered as far as the number of trainings and steps goes, which is
      always the same.

    Reference: Papernot and Steinke (2022), "Hyperparameter tuning with Renyi differential privacy";
      the bound on the privacy profile is that of ``dpjax.accounting.search``, see there; Koskela,
      Redberg and Wang (2024), "Privacy profiles for private selection", bound profiles too.

    >>> import functools, dpjax, jax.numpy as jnp
    >>> data = dpjax.datasets.load("randhie")
    >>> make = functools.partial(
    ...     dpjax.dp_trust_region, dpjax.objectives.logistic_nonconvex(), data_size=data.size,
    ...     dimension=data.dimension, steps=4)
    >>> tuned = tune(make, {"radius": [1.0, 12.0]}, data, dpjax.PrivacyBudget(1.0, 5e-6),
    ...     trials=2, cap=4, seed=0)
    >>> sorted(tuned.settings), tuned.epsilon() <= 1.0, tuned.releasable
    (['radius'], True, False)
    """
    how: Any = {"trials": trials, "cap": cap, "shape": shape}
    chosen = plan(make, settings, budget, score=score, score_share=score_share, **how)
    how = {"key": key, "seed": seed, "params": params, "memory_limit": memory_limit}
    booked: Any = {"checkpoint": checkpoint, "ledger": ledger, "label": label, "part": part}
    return run_plan(chosen, data, progress=progress, **how, **booked)


def run_plan(
    chosen: SearchPlan,
    data: Dataset | PyTree,
    *,
    key: Array | None = None,
    seed: int | None = None,
    params: Params | None = None,
    memory_limit: int = MEMORY,
    progress: bool | None = None,
    checkpoint: str | os.PathLike | None = None,
    ledger: Ledger | str | os.PathLike | None = None,
    label: str | None = None,
    part: str | None = None,
) -> Tuned:
    """Returns the release of a search that is planned; see ``tune``."""
    plain, mesh = mesh_of(data)
    if mesh is not None or is_streamed(plain.examples if isinstance(plain, Dataset) else plain):
        raise ValueError(
            "a search makes many trainings at once, on one device and of records in memory: pass "
            "the data without distributed.shard and without memory_limit."
        )
    limit = _validate.positive_int("memory_limit", memory_limit)
    # Before the search is booked: a score that fails later would have spent the budget.
    score = checked_score(chosen.score, starting_point(chosen.algorithms[0], params))
    chosen = dataclasses.replace(chosen, score=score)
    root = None if key is None and seed is None and checkpoint else root_key(key, seed)
    training = prepare(chosen.algorithms[0], data, root, params, seeded=seed is not None)
    for other in chosen.algorithms[1:]:  # of one structure, but each with its own event
        check_questions(other, training.examples, training.params)
    pieces = _pieces(chosen.release.number.cap, training.records, limit)
    training = _Search(**vars(training), chosen=chosen, pieces=pieces)
    kept = RunFiles(checkpoint, ledger, label, part).named(training.data)
    with journal(training, kept) as written:
        training = dataclasses.replace(training, reproducible=written.reproducible)
        with claimed(written.reached.key, ADVICE, owner=written.reached.run_id):
            best = _search(training, written, progress)
        written.complete()
    setting = int(best.setting)
    solution = searched(best.solution, chosen.algorithm(setting))
    solution = training.settled(solution, kept.part)
    if int(solution.status) == Status.NOT_FINITE:
        warnings.warn(Status.NOT_FINITE.message, RuntimeWarning, stacklevel=2)
    return Tuned(solution, chosen.settings[setting], float(best.score))


@dataclasses.dataclass(frozen=True)
class _Search(Training):
    """The trainings of a search, as one run: it is booked, saved and goes on as a whole."""

    chosen: SearchPlan
    pieces: tuple[int, int]
    """How many trainings are made at once, and how many times that."""

    event = property(lambda self: self.chosen.event)
    rounds = property(lambda self: _trials.rounds_of(self.chosen.algorithms))
    steps = property(lambda self: self.rounds * self.pieces[1])

    def described(self) -> Configuration:
        """Returns what must be the same: another setting or score would be a second release."""
        chosen, score, found = self.chosen, self.chosen.score, super().described()
        numbers = fingerprint.arrays(jax.tree.leaves(_trials.stack(chosen.algorithms)))
        judged = ACCURACY if score is None else FUNCTION + trace(score, self.params).digest
        # First what a caller gives, by words that a refusal says, and that name no field.
        own = {
            "score of the search": judged,
            "trials of the search": str(chosen.release.number),
            "memory_limit of the search": f"enough for {self.pieces[0]} trainings at once",
            "grid of the search": f"{len(chosen.settings)}: #{sha256(repr(chosen.settings))[:12]}",
        }
        return found._replace(settings=own | found.settings | {"search.numbers": numbers})


class _Carry(NamedTuple):
    """Where a search is; SECRET."""

    step: Array
    """Of all pieces together."""
    trainings: loop.Carry
    """Of the piece that is being made."""
    best: _trials.Best
    """Of the pieces before it; of none, zeros."""


def _search(training: _Search, written: Journal, progress: bool | None) -> _trials.Best:
    """Makes all trainings, some at once, and returns the best; the host sees no other."""
    chosen, (size, pieces), rounds = training.chosen, training.pieces, training.rounds
    number, records, params = chosen.release.number, training.records, training.params
    stacked = _trials.stack(chosen.algorithms)
    # Slots beyond the cap fill the last piece; none of them counts.
    drawn = _draw(
        stacked, records, written.reached.key, params, number, len(chosen.settings), size * pieces
    )

    def choose(trainings: loop.Carry, best: _trials.Best | None, piece: int = 0) -> _trials.Best:
        here, unit = _piece(drawn, piece, size), training.unit_of_privacy
        return _choose(stacked, here, trainings, records, params, chosen.score, best, **unit)

    trainings = _begin(stacked, _piece(drawn, 0, size), records, params)
    none = jax.tree.map(jnp.zeros_like, jax.eval_shape(choose, trainings, None))
    # This writes the intent to the disk; only then may a step ask.
    carry = written.begin(_Carry(jnp.zeros((), jnp.int32), trainings, none))
    title, step = f"{chosen.algorithms[0].title}, private search", 1
    with Bar(title, number.cap * rounds, shown=progress) as bar:
        # Every training is made whatever K is, so that the time tells nothing.
        while (done := int(carry.step)) < training.steps:
            bar.update(min(done * size, number.cap * rounds))
            (piece, at), begun, (_, trainings, best) = divmod(done, rounds), time.monotonic(), carry
            here = _piece(drawn, piece, size)
            if at == 0:
                trainings = _begin(stacked, here, records, params)
            # A few at a time, for bar and checkpoint alone: what is computed does not depend on it.
            step = min(step, rounds - at)
            trainings = _advance(stacked, here, trainings, records, params, step)
            if at + step == rounds:
                best = choose(trainings, best if piece else None, piece)
            # JAX returns before it has computed; the bar and its clock wait.
            carry = jax.block_until_ready(_Carry(carry.step + step, trainings, best))
            written.save(carry)
            step = _longer(step, time.monotonic() - begun)
        written.end(carry)
    return carry.best


def _piece(drawn: _trials.Draw, piece: int, size: int) -> _trials.Draw:
    return jax.tree.map(lambda leaf: leaf[piece * size : (piece + 1) * size], drawn)


def _pieces(cap: int, records: PyTree, limit: int) -> tuple[int, int]:
    """Returns how many trainings are made at once, and how many times that."""
    one = max(sum(np.size(leaf) * leaf.dtype.itemsize for leaf in jax.tree.leaves(records)), 1)
    pieces = -(-cap // max(min(limit // one, cap), 1))
    # Nearly equal pieces, so that few trainings are made beyond the cap.
    return -(-cap // pieces), pieces


def _longer(step: int, seconds: float) -> int:
    """How many steps to take before the bar moves again."""
    if seconds < _PIECE_SECONDS / 2:
        return 2 * step
    return max(step // 2, 1) if seconds > 2 * _PIECE_SECONDS else step


# ``trials`` holds them uncompiled, as an audit traces a whole search as one program.
_draw = jax.jit(_trials.draw, static_argnames=("number", "settings", "slots"))
_begin = jax.jit(_trials.begin)
_advance = jax.jit(_trials.advance)
_choose = jax.jit(_trials.choose, static_argnames=("unit", "bounded_rows"))
