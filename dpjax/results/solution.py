"""``Solution``, what a training returns, and the file that keeps it: never keys or secret state."""

import dataclasses
import datetime
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from dpjax import _durable, _validate, plotting
from dpjax._lazy import serialization
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.accounting import Event, Release
from dpjax.accounting.claims import Claim
from dpjax.accounting.one_run import LEVEL, OneRun, of_guesses
from dpjax.algorithms import Algorithm, Certificate, ErrorBars, PopulationBars
from dpjax.algorithms.card import REPRODUCIBLE, check_on_host, for_each, noise_words, of_event
from dpjax.algorithms.trust_region import CERTIFICATES
from dpjax.datasets import Preprocessing
from dpjax.datasets.scaled import fields_of, preprocessing_of
from dpjax.display.cards import Card, HasCard, ceil, number, printable
from dpjax.results import guarantee as _guarantee
from dpjax.results import remarks as _remarks
from dpjax.results.prediction import Predictions, Score, score_of
from dpjax.results.remarks import ANSWERS, Description, status_words

_FORMAT = "dpjax-solution-5"
# Recounting takes up to a third of a second for each release of another kind, and longer for counts
# beyond these, which no training reaches.
_MOST_RELEASES, _MOST_ANSWERS = 128, 10**8


@pytree_dataclass
class Solution(Predictions, HasCard):
    """The result of a private training, a pytree.

    Args:
      params: the trained parameters.
      history: NamedTuple of arrays with leading axis ``max_steps``, NaN after ``steps``.
      steps: int32, steps taken.
      status: int32, a ``Status``.
      certificate: bounds on the true gradient and curvature; None without, or if one is not finite,
        which stays in a batch alone.
      certified_params: the parameters the certificate refers to, or None.
      algorithm: what was run, with its calibrated noise.
      evidence: of each step and part of its answers, |part|^2 / stddev^2 less its degrees of
        freedom, as of noise alone, and these; float32 (max_steps, parts, 2), NaN after ``steps``.
      accuracy: a noisy estimate of the final accuracy, see ``with_accuracy``, or None.
      counted: a noisy share of the n declared records that count, see ``with_count``, or None.
      error_bars: how privacy noise spread the parameters, see ``algorithms.ErrorBars``, or None.
      guesses: how many coins of canaries were guessed right, of all; see ``audit``, or None.
      unit: what one record stands for, from the data set.
      reproducible: whether the noise came from a seed, which can be guessed, or from a key that may
        come from one, as every key may that ``random_key`` did not return in this process.
      preprocessing: how the table's columns became rows and labels, from the data set; declared.
      part: the part of a ledger's data that was read, or None.

    Privacy: every field is covered by the guarantee. ``event``, ``epsilon`` and ``guarantee`` are
      computed on the host from ``algorithm``; under ``vmap`` they give lists, one entry a run, and
      while tracing they raise.
    """

    params: Params
    history: Any
    steps: Array
    status: Array
    certificate: Certificate | None
    certified_params: Params | None
    algorithm: Algorithm
    evidence: Array
    accuracy: Array | None = None
    counted: Array | None = None
    error_bars: ErrorBars | PopulationBars | None = None
    guesses: Array | None = None
    # Static, as words and flags are no leaves that JAX could map over.
    unit: str = static(default="row")
    reproducible: bool = static(default=False)
    preprocessing: Preprocessing | None = static(default=None)
    part: str | None = static(default=None)

    @property
    def releasable(self) -> bool:
        """Whether the guarantee may be relied on: no key that a seed may make."""
        return not self.reproducible

    @property
    def description(self) -> Description:
        """What was trained, in names and declared numbers; of one run, on the host."""
        return self._each(lambda algorithm: _remarks.describe(algorithm, self.unit))

    @property
    def event(self) -> Any:
        """The ``Event`` of what was released: of all planned steps, even if fewer were taken."""
        return self._each(lambda algorithm: algorithm.event)

    def epsilon(self, delta: float | None = None) -> float | list:
        """Returns the epsilon spent, under the relation of the budget.

        Args:
          delta: by default the declared one.

        Raises:
          ValueError: if delta is out of range, or while tracing.
        """
        return self._each(lambda algorithm: algorithm.epsilon(delta))

    @property
    def remarks(self) -> list:
        """What released values say against a training, in sentences; of a batch a list for each.

        Privacy: post-processing, see ``results.remarks``.
        """
        # `settled` drops a certificate that overflowed, and leaves its parameters.
        unbounded = self.certificate is None and self.certified_params is not None
        evidence = (self.evidence, self.steps, unbounded)
        if self.counted is not None:
            # Of two sides, so that 1e-3 lies above it.
            n, (_, most) = self.algorithm.queries[0].data_size, self.counted_interval(0.998)
            evidence += (n, self.counted, most)
        remarks = self._each(lambda evidence: _remarks.remarks_of_released(*evidence), evidence)
        audit: Any = None if self.guesses is None else self.audit()
        refuted = isinstance(audit, OneRun) and audit.refuted
        return [*remarks, f"the claim is refuted: {audit}"] if refuted else remarks

    def audit(self, level: float = LEVEL) -> OneRun | list:
        """Returns a lower bound on epsilon at the declared delta by the canaries of ``run``.

        It is above the true epsilon with probability ``level`` at most, see ``auditing.one_run``;
        a run without canaries has none, which is a ``ValueError``.
        """
        if self.guesses is None:
            raise ValueError("the run had no canaries: pass canaries=1000 to run or fit.")

        def of_one(run: tuple[Any, Array]) -> OneRun:
            (algorithm, correct), canaries = run, run[0].canaries
            claim, delta = Claim(algorithm.event), float(algorithm.declared.delta)
            most = canaries // 2 * 2
            return of_guesses(int(correct), most, canaries, claim, delta, level, independent=True)

        return self._each(of_one, (self.algorithm, self.guesses))

    def guarantee(self) -> _guarantee.Guarantee | list:
        """Returns the guarantee in words a person can publish, with the bound of an audit."""
        scale = self.preprocessing
        declared = (None, None) if scale is None else (scale.classes or (), scale.label_bounds)
        audit = "" if self.guesses is None or np.shape(self.steps) else str(self.audit())
        return self._each(
            lambda algorithm: _guarantee.statement(
                algorithm, self.unit, self.reproducible, *declared, self.part, audit
            )
        )

    def accuracy_interval(self, confidence: float = 0.95) -> tuple[Array, Array]:
        """Returns what the exact accuracy lies between with this probability, over the noise.

        Of the records that were trained on; a null record counts as wrong.

        Raises:
          ValueError: if no accuracy was released, or for a confidence out of range.
        """
        return self._interval("accuracy", confidence)

    def counted_interval(self, confidence: float = 0.95) -> tuple[Array, Array]:
        """Returns the same for the exact share of the declared records that count."""
        return self._interval("counted", confidence)

    def plot(self, path: str | os.PathLike | None = None) -> Any:
        """Returns a matplotlib figure of the released history, and writes it to ``path``."""
        return plotting.plot_solution(self, path, self.algorithm.title)

    def _interval(self, field: str, confidence: float) -> tuple[Array, Array]:
        name, value = ANSWERS[field], getattr(self, field)
        if value is None:
            raise ValueError(f"no {name} was released; build the algorithm with dpjax.with_{name}.")
        # Its noise is what spread the answer.
        (query,) = (query for query in self.algorithm.queries if query.name == name)
        return _remarks.interval(value, query.stddev, query.relation, confidence)

    def _score(self) -> Score:
        score = score_of(self.algorithm.objective)
        # A network is code of the user's own, which a solution does not hold.
        if not score.kind:
            raise ValueError(
                f"a solution of {self.algorithm.objective.name} has no prediction rule: call your "
                "model with solution.params, or use Trained.predict for a network trained by fit."
            )
        return score

    def _card(self) -> Card:
        algorithm: Any = self.algorithm
        planned = number(algorithm.steps, "{:,}".format)

        def spent(_: Event) -> str:
            return ceil(algorithm.epsilon())

        rows = (
            # By the shape of the steps: a batch, or a trace, has no single epsilon to print.
            ("epsilon", number(self.steps, lambda _: of_event(algorithm, spent))),
            ("delta", number(algorithm.declared.delta, lambda delta: ceil(float(delta)))),
            ("relation", algorithm.relation),
            ("steps", number(self.steps, lambda taken: f"{int(taken):,} of {planned}")),
            ("status", number(self.status, status_words)),
            ("noise", of_event(algorithm, noise_words)),
            ("parameters", f"{algorithm.dimension:,}"),
            ("unit of privacy", f"one {self.unit}"),
        )
        return Card(f"Solution by {algorithm.title}", rows, REPRODUCIBLE * self.reproducible)

    def _each(self, read: Callable[[Any], Any], tree: Any = None) -> Any:
        # All leaves: under vmap over keys the algorithm's own numbers are concrete.
        check_on_host(self)
        return for_each(self.algorithm if tree is None else tree, np.shape(self.steps), read)


def settled(
    solution: Solution, reproducible: bool, scale: Preprocessing | None, part: str | None = None
) -> Solution:
    """Returns a solution with what the host knows; without bounds that are not finite."""
    leaves = jax.tree.leaves(solution.certificate)
    # Of a batch, or while tracing, they stay.
    if not any(isinstance(leaf, Tracer) or np.ndim(leaf) for leaf in leaves):
        # A bound that overflowed certifies nothing; `remarks` says that there was one.
        certificate = solution.certificate if np.isfinite(leaves).all() else None
        solution = dataclasses.replace(solution, certificate=certificate)
    return dataclasses.replace(solution, reproducible=reproducible, preprocessing=scale, part=part)


@dataclasses.dataclass(frozen=True)
class SavedSolution(Predictions, HasCard):
    """What ``load`` gives back: the public part of a ``Solution``, which predicts as it does.

    The code of a network is not in the file: rebuild the model and call it at ``params``, as its
    library wants, on rows that ``preprocessing.rows`` scales where that is not None.

    Args:
      params: the trained parameters, with dictionaries in place of other containers.
      history: dictionary of arrays.
      certificate: dictionary, or None.
      event: what was released.
      accountant: the one that recounts it.
      text: the guarantee as it was printed.
      preprocessing: columns, bounds or schema, intercept and classes that were declared, or None.
      score: how the parameters score rows.
      description: what was trained.

    The other fields are those of ``Solution``.

    Privacy: all of it is covered by the guarantee.
    """

    params: Params
    history: dict[str, np.ndarray]
    steps: int
    status: int
    certificate: dict[str, Any] | None
    certified_params: Params | None
    event: Event
    accountant: str
    text: str
    preprocessing: Preprocessing | None
    score: Score
    error_bars: ErrorBars | PopulationBars | None
    accuracy: float | None
    counted: float | None
    description: Description

    def epsilon(self, delta: float) -> float:
        """Returns the epsilon spent at ``delta``, recomputed from the releases."""
        return _remarks.recounted(self.event, delta, self.accountant)

    def guarantee(self) -> _guarantee.Guarantee:
        """Returns what the releases in the file recount to, and the text that the file claims."""
        # The text is the file's own and could claim anything: the recounted epsilon comes first.
        what, warning_and_text = self.description, _guarantee.split_warning(printable(self.text))
        name, recounted = printable(what.algorithm), ceil(self.epsilon(what.delta))
        first = (
            f"\n{name} is ({recounted}, {ceil(what.delta)})-differentially private.\n"
            "That is recounted from the releases that the file lists; the file claims:\n"
        )
        return _guarantee.Guarantee(first.join(warning_and_text).lstrip("\n"))

    def _card(self) -> Card:
        warning, text = _guarantee.split_warning(self.guarantee())
        rows = (
            ("guarantee", text.partition("\n")[0].rstrip(".")),
            ("relation", self.event.relation),
            ("steps", str(int(self.steps))),
            ("status", status_words(self.status)),
            ("noise", noise_words(self.event)),
            ("parameters", f"{sum(map(np.size, jax.tree.leaves(self.params))):,}"),
        )
        return Card("Saved solution", rows, warning)

    def _score(self) -> Score:
        if not self.score.kind:
            raise ValueError(
                "the file holds the parameters, not the code that predicts by them: rebuild the "
                "model and call it at load(path).params, such as "
                "module.apply({'params': params}, x) of flax linen, nnx.update(module, params) "
                "and module(x) of nnx, or objective.predict(params, rows)."
            )
        return self.score


def solution_of(trained: Any) -> tuple[Any, str]:
    """Returns the solution in what ``fit``, ``tune`` or an estimator gave, and its guarantee.

    Raises:
      ValueError: for what holds none.
    """
    found = trained
    if not isinstance(trained, Solution | SavedSolution):
        found = getattr(trained, "solution", getattr(trained, "solution_", None))
    if not isinstance(found, Solution | SavedSolution):
        raise ValueError(
            "pass a Solution, what load, fit or tune returned, or an estimator after fit; got "
            f"{_validate.shown(trained)}."
        )
    # An estimator's says more: of the steps before it, and of other fits.
    return found, str(getattr(trained, "guarantee_", None) or found.guarantee())


def save(path: str | os.PathLike, solution: Any, *, author: str = "") -> None:
    """Writes the public part of ``solution`` to one file, all or nothing.

    Args:
      path: file to write or replace.
      solution: a ``Solution``, not a batch; an estimator; or what ``tune`` or ``fit`` returned, but
        neither the model's code, nor what was measured on held-out records.
      author: who trained it and answers questions, for a report; public.

    Raises:
      ValueError: for a batch of solutions, or what is none.

    Privacy: writes params with their error bars, (p, p), history, certificate, guarantee, and the
      columns, bounds or schema, intercept and classes that were declared; no key, no data, no
      secret state.

    >>> import jax, jax.numpy as jnp, dpjax, tempfile, os
    >>> budget = dpjax.PrivacyBudget(epsilon=1.0, delta=1e-3)
    >>> algorithm = dpjax.dp_gradient_descent(
    ...     dpjax.objectives.logistic(), budget, data_size=50, dimension=2, steps=4)
    >>> x = jnp.ones((50, 2)) / 2 ** 0.5
    >>> solution = dpjax.solve(algorithm, (x, jnp.ones(50)), key=jax.random.key(0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(os.path.join(folder, "model"), solution)
    ...     bool((load(os.path.join(folder, "model")).params == solution.params).all())
    True
    """
    if getattr(solution, "data_norm", None) is not None:
        raise ValueError("save keeps no data_norm: declare bounds, or save its solution_.")
    solution, guarantee = solution_of(solution)
    if np.ndim(solution.steps):
        raise ValueError("save takes one solution; index a batch with jax.tree.map first.")
    what = solution.description._replace(author=author, date=f"{datetime.date.today():%Y-%m-%d}")
    event, certificate, bars = solution.event, solution.certificate, solution.error_bars
    content = {
        "format": _FORMAT,
        # Dictionaries of arrays, whatever containers the network's library has.
        "params": serialization.to_state_dict(_host(solution.params)),
        "history": _host(solution.history._asdict()),
        "steps": int(solution.steps),
        "status": int(solution.status),
        "certificate": None if certificate is None else _host(dataclasses.asdict(certificate)),
        "certified_params": serialization.to_state_dict(_host(solution.certified_params)),
        "releases": json.dumps([release.to_fields() for release in event.releases]),
        "relation": event.relation,
        "accountant": solution.algorithm.accountant,
        # As it was printed, beside the releases that it is recounted from.
        "text": guarantee,
        "preprocessing": json.dumps(fields_of(solution.preprocessing)),
        "score": json.dumps(dataclasses.asdict(score_of(solution.algorithm.objective))),
        "error_bars": None if bars is None else _host(dataclasses.asdict(bars)),
        # None stays None, as it is an empty tree.
        **jax.tree.map(float, {name: getattr(solution, name) for name in ANSWERS}),
        "description": json.dumps(what._asdict()),
    }
    with _durable.replacing(path) as file:
        file.write(serialization.msgpack_serialize(content))


def load(path: str | os.PathLike) -> SavedSolution:
    """Returns what ``save`` wrote; its ``predict`` takes a table, a data frame or an array.

    Raises:
      ValueError: if the file is something else.
      FileNotFoundError: if there is none.
    """
    try:
        raw = pathlib.Path(path).read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        folder = ", but a folder: name the file that save wrote" * os.path.isdir(path)
        raise FileNotFoundError(f"there is no file {str(path)!r}{folder}.") from error
    try:
        # Data alone, as is JSON: nothing of a file is run.
        content: Any = serialization.msgpack_restore(raw)
        if content["format"] != _FORMAT:
            # Caught below, as everything is that shows another kind of file.
            raise KeyError
        del content["format"]
        releases = tuple(Release.from_fields(r) for r in json.loads(content.pop("releases")))
        bars = content.pop("error_bars")
        # Each kind has fields of its own, by which it is known again.
        of_bars = PopulationBars if "noise_covariance" in (bars or ()) else ErrorBars
        fields = {
            "event": Event(releases, content.pop("relation")),
            "preprocessing": preprocessing_of(json.loads(content.pop("preprocessing"))),
            "score": Score(**json.loads(content.pop("score"))),
            "error_bars": None if bars is None else of_bars(**bars),
            "description": Description(**json.loads(content.pop("description"))),
        }
        saved = SavedSolution(**content, **fields)  # the others are in the file as they are
        _check(saved)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not a solution saved by this version of dpjax.") from error
    return saved


def _check(saved: SavedSolution) -> None:
    """Raises for what ``save`` does not write: whoever sends a model may have made its file."""
    what, score, claim = saved.description, saved.score, saved.certificate
    numbers = (saved.params, saved.certified_params, saved.history, saved.steps, saved.status)
    kinds = {np.asarray(leaf).dtype.kind for leaf in jax.tree.leaves(numbers)}
    size = sum(map(np.size, jax.tree.leaves(saved.params)))
    words = (what.algorithm, what.objective, what.unit, *what[6:], saved.text, *saved.history)
    releases = [part for release in saved.event.releases for part in release.parts()]
    right = (
        kinds <= set("fiubV")  # bfloat16 is of kind V
        and all(isinstance(word, str) for word in words)
        and all(np.ndim(values) for values in saved.history.values())
        and isinstance(saved.steps, int)
        and isinstance(saved.status, int)
        and all(isinstance(number, int) for number in (score.hidden, score.classes))
        and (not score.kind or 0 < score.model.parameters(1) <= size)
        and (score.kind != "two-layer" or score.hidden > 0)
        and sum(not release.is_gaussian for release in releases) <= _MOST_RELEASES
        # Shares of the budget are a Gaussian for each planned step.
        and len(releases) <= _MOST_RELEASES + what.steps
        and all(release.count <= _MOST_ANSWERS for release in releases)
        and (
            claim is None or (claim["iterate"] in CERTIFICATES and isinstance(claim["scope"], str))
        )
    )
    if not right:
        raise ValueError("what save does not write")
    # Lists in place of tuples would fail later, where epsilon is cached.
    hash(saved.event)
    for release in saved.event.releases:
        # Fields of other kinds would fail later, where they are shown.
        release.to_json()
    if claim is not None:
        bounds = Certificate(**claim)
        for bound in (bounds.gradient_norm_upper, bounds.min_eigenvalue_lower, bounds.beta):
            # Raises for what is no single number, which a page could not print.
            _ = None if bound is None else float(np.asarray(bound))
    for name in ANSWERS:
        if getattr(saved, name) is not None:
            _validate.finite(name, getattr(saved, name))
    _validate.choice("accountant", saved.accountant, ("pld", "rdp"))
    _validate.open_unit("delta", what.delta)
    _validate.positive_int("records", what.records)
    _validate.positive_int("steps", what.steps)


def _host(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, str) else np.asarray(leaf), tree)
