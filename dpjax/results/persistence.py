"""``save`` and ``load``: parameters, history and guarantee on disk; never keys or secret state."""

import dataclasses
import functools
import json
import os
import pathlib
from typing import Any

import jax
import numpy as np
from flax import serialization

from dpjax import _durable, _validate
from dpjax._typing import Params
from dpjax.accounting import Event, Release, epsilon
from dpjax.algorithms import ErrorBars
from dpjax.algorithms.base import Status
from dpjax.algorithms.card import noise_words
from dpjax.algorithms.certificate import Certificate
from dpjax.algorithms.trust_region import CERTIFICATES
from dpjax.datasets import Preprocessing
from dpjax.datasets.scaled import fields_of, preprocessing_of
from dpjax.display.cards import Card, HasCard, ceil, printable
from dpjax.results.answers import ANSWERS
from dpjax.results.guarantee import Guarantee, split_warning
from dpjax.results.prediction import Predictions, Score, score_of
from dpjax.results.solution import Description, Solution

_FORMAT = "dpjax-solution-5"
# Recounting takes up to a third of a second for each release of another kind, and longer for counts
# beyond these, which no training reaches.
_MOST_RELEASES, _MOST_ANSWERS = 128, 10**8


@dataclasses.dataclass(frozen=True)
class SavedSolution(Predictions, HasCard):
    """What ``load`` gives back: the public part of a ``Solution``, which predicts as it does.

    The code of a network is not in the file: rebuild the model and call it at ``params``, as its
    library wants, on rows that ``preprocessing.rows`` scales where that is not None.

    Args:
      params: the trained parameters, with dictionaries in place of other containers.
      history: dictionary of arrays.
      steps: steps taken.
      status: a ``Status``.
      certificate: dictionary, or None.
      certified_params: parameters the certificate refers to, or None.
      event: what was released.
      accountant: the one that recounts it.
      text: the guarantee as it was printed.
      preprocessing: columns, bounds or schema, intercept and classes that were declared, or None.
      score: how the parameters score rows.
      error_bars: how privacy noise spread the parameters, or None.
      accuracy: a noisy estimate of the final accuracy, or None.
      counted: a noisy share of the declared records that count, or None.
      description: what was trained.

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
    error_bars: ErrorBars | None
    accuracy: float | None
    counted: float | None
    description: Description

    def epsilon(self, delta: float) -> float:
        """Returns the epsilon spent at ``delta``, recomputed from the releases."""
        return _recounted(self.event, delta, self.accountant)

    def guarantee(self) -> Guarantee:
        """Returns what the releases in the file recount to, and the text that the file claims."""
        # The text is the file's own and could claim anything: the recounted epsilon comes first.
        what, warning_and_text = self.description, split_warning(printable(self.text))
        name, recounted = printable(what.algorithm), ceil(self.epsilon(what.delta))
        first = (
            f"\n{name} is ({recounted}, {ceil(what.delta)})-differentially private.\n"
            "So it is recounted from the releases that a file lists, and the file claims:\n"
        )
        return Guarantee(first.join(warning_and_text).lstrip("\n"))

    def _card(self) -> Card:
        warning, text = split_warning(self.guarantee())
        messages = {status.value: status.message.rstrip(".") for status in Status}
        rows = (
            ("guarantee", text.partition("\n")[0].rstrip(".")),
            ("relation", self.event.relation),
            ("steps", str(int(self.steps))),
            ("status", messages.get(int(self.status), "unknown")),
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


def save(path: str | os.PathLike, solution: Any) -> None:
    """Writes the public part of ``solution`` to one file, all or nothing.

    Args:
      path: file to write or replace.
      solution: a ``Solution``, not a batch; or what ``fit`` returned, of which the parameters, the
        history and the guarantee are written: neither the model, nor what was measured on held-out
        records.

    Raises:
      ValueError: for a batch of solutions.

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
    if not isinstance(solution, Solution):
        solution = solution.solution
    if np.ndim(solution.steps):
        raise ValueError("save takes one solution; index a batch with jax.tree.map first.")
    event = solution.event
    certificate, bars = solution.certificate, solution.error_bars
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
        "text": str(solution.guarantee()),
        "preprocessing": json.dumps(fields_of(solution.preprocessing)),
        "score": json.dumps(dataclasses.asdict(score_of(solution.algorithm.objective))),
        "error_bars": None if bars is None else _host(dataclasses.asdict(bars)),
        # None stays None, as it is an empty tree.
        **jax.tree.map(float, {name: getattr(solution, name) for name in ANSWERS}),
        "description": json.dumps(solution.description._asdict()),
    }
    with _durable.replacing(path) as file:
        file.write(serialization.msgpack_serialize(content))


def load(path: str | os.PathLike) -> SavedSolution:
    """Returns what ``save`` wrote.

    Args:
      path: a file written by ``save``.

    Returns:
      A ``SavedSolution``, whose ``predict`` takes a table, a data frame or an array.

    Raises:
      ValueError: if the file is something else.
      FileNotFoundError: if there is none.
    """
    try:
        raw = pathlib.Path(path).read_bytes()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {str(path)!r}.") from error
    try:
        # Data alone, as is JSON: nothing of a file is run.
        content: Any = serialization.msgpack_restore(raw)
        if content["format"] != _FORMAT:
            # Caught below, as everything is that shows another kind of file.
            raise KeyError
        del content["format"]
        releases = tuple(Release.from_fields(r) for r in json.loads(content.pop("releases")))
        bars = content.pop("error_bars")
        fields = {
            "event": Event(releases, content.pop("relation")),
            "preprocessing": preprocessing_of(json.loads(content.pop("preprocessing"))),
            "score": Score(**json.loads(content.pop("score"))),
            "error_bars": None if bars is None else ErrorBars(**bars),
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
    words = (what.algorithm, what.objective, what.unit, saved.text, *saved.history)
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
        and len(releases) <= _MOST_RELEASES
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


# A card, a guarantee and a page all ask for the same number.
@functools.lru_cache(maxsize=8)
def _recounted(event: Event, delta: float, accountant: str) -> float:
    return epsilon(event, delta, event.relation, accountant)


def _host(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, str) else np.asarray(leaf), tree)
