"""``tune``: private random search over settings, whose whole cost is known."""

import contextlib
import os
import time
import uuid
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from dpjax import _validate
from dpjax._program import sha256
from dpjax._typing import Array, Params, PyTree
from dpjax.accounting import Ledger, PrivacyBudget
from dpjax.algorithms import Status
from dpjax.datasets import Dataset
from dpjax.display.bar import Bar
from dpjax.distributed import mesh_of
from dpjax.driver.asking import check_questions
from dpjax.driver.keys import ADVICE, root_key
from dpjax.driver.loop import describe
from dpjax.driver.prepare import Training, prepare, starting_point
from dpjax.driver.resume import RunFiles, unless_unwritable
from dpjax.mechanisms.keys import claimed
from dpjax.placement.stream import is_streamed
from dpjax.tuning import trials as _trials
from dpjax.tuning.planning import SCORE_SHARE, Make, SearchPlan, Settings, plan
from dpjax.tuning.score import ACCURACY, check_score
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
    booked: Any = {"ledger": ledger, "label": label, "part": part}
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
    check_score(chosen.score, starting_point(chosen.algorithms[0], params))
    root = root_key(key, seed)
    training = prepare(chosen.algorithms[0], data, root, params, seeded=seed is not None)
    for other in chosen.algorithms[1:]:  # of one structure, but each with its own event
        check_questions(other, training.examples, training.params)
    kept = RunFiles(None, ledger, label, part).named(training.data)
    with claimed(root, ADVICE), _booked(chosen, kept, training):
        best = _search(chosen, training, limit, progress)
    setting = int(best.setting)
    solution = searched(best.solution, chosen.algorithm(setting))
    solution = training.settled(solution, kept.part)
    if int(solution.status) == Status.NOT_FINITE:
        warnings.warn(Status.NOT_FINITE.message, RuntimeWarning, stacklevel=2)
    return Tuned(solution, chosen.settings[setting], float(best.score))


def _search(
    chosen: SearchPlan, training: Training, limit: int, progress: bool | None
) -> _trials.Best:
    """Makes all trainings, some at once, and returns the best; the host sees no other."""
    number, records, params = chosen.release.number, training.records, training.params
    size, pieces = _pieces(number.cap, records, limit)
    unit = training.unit_of_privacy
    stacked, rounds = _trials.stack(chosen.algorithms), _trials.rounds_of(chosen.algorithms)
    # Slots beyond the cap fill the last piece; none of them counts.
    drawn = _draw(
        stacked, records, training.key, params, number, len(chosen.settings), size * pieces
    )
    title = f"{chosen.algorithms[0].title}, private search"
    best = None
    with Bar(title, number.cap * rounds, shown=progress) as bar:
        # Every training is made whatever K is, so that the time tells nothing.
        for piece in range(pieces):
            here = jax.tree.map(lambda leaf, k=piece: leaf[k * size : (k + 1) * size], drawn)
            carries = _begin(stacked, here, records, params)
            done, step = 0, 1
            # A few steps at a time, for the bar alone: what is computed does not depend on it.
            while done < rounds:
                begun = time.monotonic()
                step = min(step, rounds - done)
                # JAX returns before it has computed; the bar and its clock wait.
                carries = jax.block_until_ready(
                    _advance(stacked, here, carries, records, params, step)
                )
                done += step
                bar.update(min((piece * rounds + done) * size, number.cap * rounds))
                step = _longer(step, time.monotonic() - begun)
            best = _choose(stacked, here, carries, records, params, chosen.score, best, **unit)
        return jax.block_until_ready(best)  # pyright: ignore[reportReturnType] # of some trainings


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


@contextlib.contextmanager
def _booked(chosen: SearchPlan, kept: RunFiles, training: Training) -> Iterator[None]:
    """Writes the search into the ledger before it begins, and its end after it."""
    with contextlib.ExitStack() as stack:
        if (book := kept.opened(stack)) is None:
            yield
            return
        # Before the data are asked: what fails after that has been spent.
        run_id, number = uuid.uuid4().hex, chosen.release.number
        described = describe(training.algorithm, training.examples, training.params)
        book.reserve(
            run_id=run_id,
            event=chosen.event,
            label=kept.label or "",
            # Settings and the distribution of K are part of what was booked.
            config_hash=sha256(described.digest, repr(chosen.settings), repr(number)),
        )
        yield
        with unless_unwritable("the end of the search; its ledger shows it as spent, as it is"):
            book.complete(run_id)


# ``trials`` holds them uncompiled, as an audit traces a whole search as one program.
_draw = jax.jit(_trials.draw, static_argnames=("number", "settings", "slots"))
_begin = jax.jit(_trials.begin)
_advance = jax.jit(_trials.advance)
_choose = jax.jit(_trials.choose, static_argnames=("unit", "bounded_rows"))
