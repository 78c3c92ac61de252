"""NOT PRIVATE: algorithms trained side by side, measured, and kept on disk as soon as they are."""

import itertools
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _durable, _validate, diagnostics, plotting
from dpjax._program import sha256
from dpjax._typing import Array, Params, PyTree, Relation
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import ALGORITHMS, ONE_RELEASE, Algorithm
from dpjax.comparison.results import Results, Row, draw, page
from dpjax.datasets import Dataset
from dpjax.driver import fingerprint, solve
from dpjax.driver.configuration import configuration
from dpjax.objectives import OBJECTIVES, Objective
from dpjax.oracles import GradientQuery, MinimizerQuery

_FACTORIES = {**ALGORITHMS, **ONE_RELEASE}
_KEY, _STARTS = 2020, 4
# A Hessian of so many rows keeps every core busy: seeds then gain nothing from vmap.
_BUSY_ROWS = 100_000
_NAN = np.nan


class Comparison:
    """Algorithms and the records that they are compared on, checked before anything is trained.

    Args:
      data: a ``Dataset`` whose rows are single records.
      objective: what is minimised; a name in ``OBJECTIVES``, or one of your own.
      algorithms: names as in ``dpjax run``, which have their defaults; or labels with functions
        that are called as a factory is, such as ``partial(dpjax.dp_gradient_descent, steps=9)``.
      epsilons: of the budgets.
      delta: of every budget; None for 1/(10 n).
      relation: the neighbours.
      seeds: trainings at each epsilon.

    Raises:
      ValueError: for an unknown name, a budget that cannot be met, an algorithm that needs more
        than its defaults, or data that are grouped into units.

    Privacy: NOT PRIVATE: ``run`` returns exact values of the records.

    >>> import dpjax
    >>> data = dpjax.datasets.load("randhie")
    >>> Comparison(data, "logistic", ["dp-gd", "dp-tr"], [1.0], seeds=3).trainings
    6
    """

    def __init__(
        self,
        data: Dataset,
        objective: Objective | str = "logistic-nonconvex",
        algorithms: Sequence[str] | Mapping[str, Callable[..., Algorithm]] = ("dp-tr", "dp-adam"),
        epsilons: Sequence[float] = (0.5, 1.0, 2.0),
        *,
        delta: float | None = None,
        relation: Relation = "zero_out",
        seeds: int = 10,
    ):
        if not algorithms or not epsilons:
            raise ValueError("algorithms and epsilons must name one at least.")
        if data.present is not None:
            raise ValueError(
                f"a comparison is of single records, and a row of the data is a {data.unit} with "
                "several: load the table without a unit."
            )
        loss = objective if isinstance(objective, Objective) else (
            OBJECTIVES[_validate.choice("objective", objective, OBJECTIVES)]())  # fmt: skip
        if not isinstance(algorithms, Mapping):
            algorithms = {
                name: _FACTORIES[_validate.choice("algorithm", name, _FACTORIES)]
                for name in algorithms
            }
        self.data, self.objective, self.relation = data, loss, relation
        self.seeds = _validate.positive_int("seeds", seeds)
        self.delta = 0.1 / data.size if delta is None else delta
        self.dimension = loss.parameters(data.dimension)
        # Those of functools.partial; what any other function sets cannot be read off it.
        keywords = {label: getattr(make, "keywords", {}) for label, make in algorithms.items()}
        self.settings = {
            label: ", ".join(f"{name} {value}" for name, value in words.items()) or "defaults"
            for label, words in keywords.items()
        }
        sizes = {"data_size": data.size, "dimension": self.dimension}
        self.algorithms = {
            (label, spent): make(loss, PrivacyBudget(spent, self.delta, relation), **sizes)
            for label, make in algorithms.items()
            # Once each: a second training at the same epsilon would only be counted twice.
            for spent in sorted(set(map(float, epsilons)))
        }
        """The calibrated algorithms, by label and epsilon."""

    @property
    def trainings(self) -> int:
        """How many trainings that is, if nothing is on the disk."""
        return self.seeds * len(self.algorithms)

    def run(
        self,
        folder: str | os.PathLike | None = None,
        report_progress: Callable[[str, int], None] = lambda words, trainings: None,
    ) -> Results:
        """Trains what is not on the disk yet, and writes table, picture and page.

        Results go to ``folder/cache`` as soon as they are there: after an interruption the same
        call goes on, and what was computed is not computed again.

        Args:
          folder: made if it is absent; None writes nothing.
          report_progress: called with what is being done and how many more trainings are done.

        Raises:
          ImportError: if there is a folder and matplotlib is not installed.
          OSError: if ``folder`` cannot be written.

        Privacy: NOT PRIVATE; losses, gradient norms and accuracies are exact values of the records.
        """
        cache = None
        if folder is not None:
            # Before the trainings, and not when the picture is drawn.
            plotting.require()
            cache = pathlib.Path(folder, "cache")
            cache.mkdir(parents=True, exist_ok=True)
        examples = jax.tree.map(jnp.asarray, self.data.examples)
        # Another version or kind of device may round otherwise, and is computed anew.
        read = jax.tree.map(np.asarray, (self.data.examples, self._tested))
        records = fingerprint.content(read, jax.random.key(_KEY))
        data = {"environment": fingerprint.environment(), "data": records}

        def known(algorithm: Algorithm) -> dict[str, Any]:
            return data | configuration(algorithm, examples, jnp.zeros(self.dimension)).settings

        report_progress("the value that outputs are held against", 0)
        settings = known(next(iter(self.algorithms.values()))).items()
        # The optimum depends on the objective alone, and is shared by all algorithms.
        loss = {name: value for name, value in settings if name.startswith("objective")}
        optimum = _cached(cache, data | loss, lambda: self._optimum(examples))
        measured = {}
        for (label, spent), algorithm in self.algorithms.items():
            metrics = {}
            first_order = GradientQuery | MinimizerQuery
            light = all(isinstance(query, first_order) for query in algorithm.queries)
            seeds = list(range(self.seeds))
            # Seeds of one group are trained in one program.
            together = light or self.data.size <= _BUSY_ROWS
            for group in [seeds] if together else [[seed] for seed in seeds]:
                report_progress(f"{label}, epsilon {spent:g}", 0)
                values = _cached(
                    cache,
                    known(algorithm) | {"seeds": [self.seeds, *group]},
                    lambda a=algorithm, g=group: self._measured(a, examples, g),
                )
                metrics = {name: metrics.get(name, []) + more for name, more in values.items()}
                report_progress(f"{label}, epsilon {spent:g}", len(group))
            measured[label, spent] = metrics
        results = self._rows(optimum, measured)
        if folder is not None:
            picture, table, text = self.paths(folder)
            results.write(table)
            draw(results, self.relation, picture)
            conventions = (
                f"Neighbours are {self.relation}, delta = {self.delta:.3g}; the unit of privacy is "
                f"one {self.data.unit}."
            )
            text.write_text(page(results, conventions))
        return results

    @staticmethod
    def paths(folder: str | os.PathLike) -> list[pathlib.Path]:
        """Returns the picture, the table and the page that ``run`` writes."""
        return [pathlib.Path(folder, f"compare.{ending}") for ending in ("png", "csv", "md")]

    @property
    def _tested(self) -> tuple[Any, Any]:
        """The records that accuracy is measured on."""
        test = self.data.test_x, self.data.test_y
        return self.data.examples if self.data.test_x is None else test

    def _measured(
        self, algorithm: Algorithm, examples: PyTree, group: list[int]
    ) -> dict[str, list[float]]:
        # Of all seeds: a training has the same key in whatever group it is.
        keys = jax.random.split(jax.random.key(_KEY), self.seeds)[np.array(group)]
        params = np.asarray(_train(algorithm, examples, keys))
        metrics = {"exact_value": diagnostics.exact_values(self.objective, params, examples)}
        if self.objective.predicts:
            metrics["exact_accuracy"] = np.array([self._accuracy(output) for output in params])
        norms = diagnostics.exact_gradient_norms(self.objective, params, examples)
        metrics["exact_gradient_norm"] = norms
        return {name: values.tolist() for name, values in metrics.items()}

    def _accuracy(self, params: Params) -> float:
        x, y = (jnp.asarray(part) for part in self._tested)
        return float(diagnostics.exact_accuracy(self.objective, jnp.asarray(params), x, y))

    def _optimum(self, examples: PyTree) -> dict[str, float]:
        """The least value that exact descents find, and what is reached there."""
        if self.objective.margin is None:
            return {}
        params, value = diagnostics.exact_optimum(self.objective, examples, _STARTS)
        metrics = {"exact_optimum": value, "exact_searched": value}
        if self.objective.predicts:
            positive = float(np.mean(np.asarray(self._tested[1]) > 0))
            metrics["exact_accuracy_of_the_optimum"] = self._accuracy(params.astype(np.float32))
            metrics["exact_share_of_the_larger_class"] = max(positive, 1 - positive)
        return metrics

    def _rows(
        self, optimum: dict[str, float], measured: dict[tuple[str, float], dict[str, list[float]]]
    ) -> Results:
        name = f"{self.data.name}, {self.objective.name}"
        place = ("compare", name, self.data.size, self.dimension)
        if optimum:
            # No search is sure to find the global minimum: an output may lie below what was found.
            values = [metrics["exact_value"] for metrics in measured.values()]
            # A training that diverged has NaN, and tells nothing of the least value.
            least = float(np.nanmin([*itertools.chain(*values), optimum["exact_optimum"]]))
            optimum = optimum | {"exact_optimum": least}
        rows = [Row(*place, "", "", _NAN, _NAN, _NAN, *pair) for pair in optimum.items()]
        for (label, spent), metrics in measured.items():
            cells = (*place, label, self.settings[label], spent)
            for metric, values in metrics.items():
                gap = bool(optimum) and metric == "exact_value"
                shift, shown = (optimum["exact_optimum"], "exact_gap") if gap else (0.0, metric)
                rows += [Row(*cells, seed, _NAN, shown, v - shift) for seed, v in enumerate(values)]
            algorithm = self.algorithms[label, spent]
            passes = algorithm.evaluations.declared / algorithm.queries[0].data_size
            costs: Any = {"steps": algorithm.steps, "passes": passes}
            costs["epsilon_of_the_noise"] = algorithm.epsilon()
            rows += [Row(*cells, _NAN, _NAN, name, float(cost)) for name, cost in costs.items()]
        return Results(rows)


@jax.jit
def _train(algorithm: Algorithm, examples: PyTree, keys: Array) -> Array:
    def train(key: Array) -> Array:
        return solve(algorithm, examples, key=key).params

    # Under vmap a `cond` runs both of its branches, so that one seed alone goes without.
    return jax.vmap(train)(keys) if len(keys) > 1 else train(keys[0])[None]


def _cached(folder: pathlib.Path | None, known: dict[str, Any], compute: Callable[[], Any]) -> Any:
    """The result of what is ``known``, computed and kept unless the folder has it."""
    if folder is None:
        return compute()
    words = json.dumps(known, sort_keys=True)
    path = folder / f"{sha256(words)[:24]}.json"
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):  # absent, or torn
        content = {}
    # The name is a part of the digest: the words decide.
    if content.get("known") != words:
        content = {"known": words, "result": compute()}
        _durable.replace_private(path, json.dumps(content).encode())
    return content["result"]
