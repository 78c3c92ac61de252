"""What the private estimators share: declared arguments, one training, its guarantee."""

import copy
import dataclasses
import inspect
import os
import secrets
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, is_classifier, is_regressor
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from dpjax import _validate
from dpjax._typing import Relation
from dpjax.accounting import Ledger, PrivacyBudget
from dpjax.algorithms import ALGORITHMS, ALL, Algorithm, Status
from dpjax.datasets import Dataset, group
from dpjax.driver import run, solve
from dpjax.estimators import arrays
from dpjax.mechanisms import random_key
from dpjax.objectives import Objective, default_penalty
from dpjax.results import Coefficients, Solution, guarantee
from dpjax.results.coefficients import coefficients
from dpjax.statistics.description import PrivateBounds, private_bins
from dpjax.tuning import SearchPlan, default_settings, plan, run_plan

# What ``fit`` says itself; the rest of a factory's arguments are options of the solver.
_SAID = ("objective", "budget", "data_size", "dimension")
# Fits of this process that no ledger has booked.
_PROCESS = secrets.token_hex(8)
_unbooked: list[None] = []
_BEFORE = """\
Also not covered: earlier steps of a scikit-learn Pipeline that are fitted on the data, such as
StandardScaler, PCA or SelectKBest. Scaling by declared bounds costs no privacy."""
_ROUTING = (
    "cross_val_score, GridSearchCV and Pipeline hand {0} on after "
    "sklearn.set_config(enable_metadata_routing=True) and estimator.set_fit_request({0}=True)."
)
_SEVERAL = """\
One of {fits} fits in this process without a ledger. This guarantee covers one fit alone: the
privacy losses of all fits on the same records add up. Pass ledger= to account for them together."""


@dataclasses.dataclass(repr=False, eq=False)
class PrivateEstimator(BaseEstimator):
    """The part of a private estimator that does not depend on what it predicts.

    Its fields are arguments of every estimator, which ``DPLogisticRegression`` explains. A subclass
    adds its own, and says what its labels, objective and coefficients are.
    """

    epsilon: float = 1.0
    delta: float | None = None
    solver: str = "dp-tr"
    _: dataclasses.KW_ONLY
    bounds: Any = None
    data_norm: float | None = None
    relation: Relation = "zero_out"
    data_size: int | None = None
    fit_intercept: bool = True
    regularization: float | None = None
    random_state: int | None = None
    solver_options: Mapping[str, Any] | None = None
    ledger: Ledger | str | os.PathLike | None = None
    unit: str = "row"
    max_records: int | None = None
    unit_type: str | None = None
    inference: bool | str = False
    limits: Any = None
    bounds_epsilon: float | None = None
    max_weight: float | None = None

    tune = None  # but of an estimator whose trainings have an accuracy to choose by
    _linear: ClassVar[bool]
    """Whether rows must be linear in the features, so that none has a norm of its own."""

    def _encode(self, y: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """Returns encoded labels, and what was declared of them as ``guarantee.statement`` asks."""
        raise NotImplementedError

    def _objective(self, size: int) -> Objective:
        """Returns the loss of one record; ``size`` is the declared number of records or units."""
        raise NotImplementedError

    def _explain(self, params: np.ndarray) -> None:
        """Sets the public coefficients from the parameters of the scaled rows."""
        raise NotImplementedError

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Trains privately, which spends the budget once, and returns the estimator itself.

        Args:
          X: (n, p) numbers: an array, dense or sparse, a list of lists, or a data frame. A cell
            that is no real number is a missing value.
          y: (n,) labels or numbers: an array, a list, or a column of a data frame. A record whose
            label is missing or not as declared contributes nothing.
          groups: (n,) integers or words that say whose each record is; None to protect each record
            by itself.
          sample_weight: (n,) numbers from 0 to ``max_weight`` that the losses of records count by;
            one beyond is clamped. A record whose weight is 0, or missing, contributes nothing.

        Raises:
          ValueError: before anything is spent, for arguments that do not fit together and arrays of
            the wrong shape or dtype; never for a single record, but for lists of unequal length.
        """
        if y is None:
            raise ValueError("fit requires y to be passed, but the target y is None.")
        encoded, declared = self._encode(y)
        self._explain(self._fit(X, encoded, groups, declared, sample_weight))
        return self

    def _fit(
        self, X: Any, y: np.ndarray, groups: Any, declared: Mapping[str, Any], sample_weight: Any
    ) -> np.ndarray:
        x = arrays.features(X)
        if len(x) != len(y):
            raise ValueError("X and y must have one length: pass one label in y for each row of X.")
        x, y = self._weighted(x, y, sample_weight)
        self._note_features(X, x, reset=True)
        bounds = self.limits if self._finds_bounds else self.bounds
        self._scaling = self._declare(arrays.by_column(bounds, X, x.shape[1]), x.shape[1])
        names = [*getattr(self, "feature_names_in_", [f"x{at}" for at in range(x.shape[1])])]
        scale = self._scaling.preprocessing(names, **declared)
        if self._inferred is not None and scale is None:
            raise ValueError(
                "inference needs bounds in place of data_norm: rows that are scaled down to a norm "
                "are not linear in their columns."
            )
        unit = _validate.word("unit", self.unit)

        def scaled(ends: Mapping[str, tuple[float, float]] | None = None) -> Dataset:
            if ends is not None:
                found = np.array([ends[name] for name in names]).T
                self._scaling = self._declare(tuple(found), x.shape[1])
            data = Dataset(self._scaling.rows(x), y, unit=unit, max_norm=1.0)
            return self._grouped(data, groups)

        def places() -> tuple[Any, Any]:
            each = [b.place(column) for b, column in zip(bins, x.T, strict=True)]
            data = Dataset(np.stack(each, 1).astype(np.float32), y, unit=unit)
            data = self._grouped(data, groups)
            return data.x, data.present

        data, look = scaled(), None
        if self._finds_bounds:
            assert scale is not None
            bins = private_bins(scale.encoders)
            look = PrivateBounds(data, bins, places, scaled)
        planned = self._configure(data.size, x.shape[1] + self._scaling.intercept, look)
        self.settings_: dict[str, Any] = {}
        solution = self._train(planned, data, look)
        scale = self._scaling.preprocessing(names, **declared)
        if scale is not None:
            scale = dataclasses.replace(scale, label="y", max_records=self.max_records)
        solution = dataclasses.replace(solution, preprocessing=scale)
        self.solution_ = solution
        for remark in solution.remarks:
            warnings.warn(remark, RuntimeWarning, stacklevel=3)
        text = guarantee.statement(
            solution.algorithm, data.unit, solution.reproducible, part=solution.part, **declared
        )
        self._guarantee = f"{text}\n{_BEFORE}"
        # With the process, as an estimator may be fitted in a worker and pickled back.
        self._fits = (_PROCESS, len(_unbooked)) if self.ledger is None else None
        self.releasable_ = solution.releasable
        self._params = np.asarray(solution.params, np.float64)
        return self._params

    def _weighted(self, x: np.ndarray, y: np.ndarray, sample_weight: Any) -> Any:
        if (sample_weight is None) != (self.max_weight is None):
            raise ValueError(
                "sample_weight and max_weight go together: declare the largest possible weight, "
                f"without looking at the data. {_ROUTING.format('sample_weight')}"
            )
        if sample_weight is None:
            return x, y
        weights = arrays.weights(sample_weight, self.max_weight)
        if len(x) != len(weights):
            raise ValueError("sample_weight must have one weight for each row of X.")
        # Nothing that is asked of the data counts a record without a weight.
        return np.where(weights[:, None] > 0, x, np.nan), np.stack([y, weights], axis=1)

    @property
    def _finds_bounds(self) -> bool:
        private = isinstance(self.bounds, str)
        if private:
            _validate.choice("bounds", self.bounds, ("private",))
        if private != (self.limits is not None) or (
            self.bounds_epsilon is not None and not private
        ):
            raise ValueError(
                'bounds="private" needs public limits=(lower, upper), within which they are found; '
                "limits and bounds_epsilon go with nothing else. Or declare bounds=(lower, upper)."
            )
        for name in ("inference", "tune"):
            if private and getattr(self, name):
                raise ValueError(f'{name} does not go with bounds="private": declare bounds.')
        return private

    def _declare(self, bounds: Any, features: int) -> arrays.Scaling:
        linear = self._linear or self._inferred is not None
        return arrays.declare(bounds, self.data_norm, bool(self.fit_intercept), features, linear)

    @property
    def guarantee_(self) -> str:
        """What the fit guarantees, in words to publish."""
        if self._fits is None:
            return self._guarantee
        process, fits = self._fits
        if process == _PROCESS:
            fits = len(_unbooked)  # those after this one count as well
        return self._guarantee if fits == 1 else f"{self._guarantee}\n{_SEVERAL.format(fits=fits)}"

    def _rows(self, X: Any) -> np.ndarray:
        """Returns features scaled as those of ``fit``."""
        check_is_fitted(self)
        x = arrays.features(X)
        self._note_features(X, x, reset=False)
        # Not in `fit`, where a NaN makes a null record and an error would tell of that record.
        check_array(x, input_name="X", estimator=self)
        return self._scaling.rows(x)

    @property
    def coefficients_(self) -> Coefficients:
        """Coefficients by name in the units of the columns, with what is known of their errors."""
        check_is_fitted(self)
        held, penalty = self.solution_, self.solution_.description.penalty
        beside: Any = {"classes": self._scored, "numeric": is_regressor(self), "penalty": penalty}
        return coefficients(self._params, held.preprocessing, held.error_bars, **beside)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def summary(self) -> str:
        """Returns ``coefficients_`` as a table with captions; of ``inference``, with intervals."""
        return self.coefficients_.summary()

    _scored: ClassVar[Any] = ()
    """Names of the classes, where each has a score."""

    @property
    def _inferred(self) -> str | None:
        if self.inference in (True, False):
            return "population" if self.inference else None
        return _validate.choice("inference", self.inference, ("population", "privacy"))

    def _strength(self, size: int) -> float:
        strength = self.regularization
        if strength is None:
            if self.solver in ALL and ALL[self.solver].unpenalized:
                return 0.0
            population = self._inferred == "population"
            strength = default_penalty(size, self.epsilon, is_classifier(self), population)
        return _validate.non_negative("regularization", strength)

    def _note_features(self, X: Any, x: np.ndarray, reset: bool) -> None:
        # Their number, and their names in a data frame: set by ``fit``, then compared.
        named: Any = X if hasattr(X, "columns") else x
        validate_data(self, named, reset=reset, skip_check_array=True)

    def _grouped(self, data: Dataset, groups: Any) -> Dataset:
        if groups is None:
            if self.max_records is not None:
                raise ValueError(
                    "max_records is for units of several records: pass fit(X, y, groups=...), "
                    f"which says whose each record is. {_ROUTING.format('groups')}"
                )
            return data
        if self.max_records is None:
            raise ValueError(
                "groups need max_records: declare how many records of one unit count, such as "
                "max_records=10, without looking at the data."
            )
        # With groups a row is not what is protected.
        unit = "person" if self.unit == "row" else self.unit
        return group(data, groups, self.max_records, unit, self.unit_type)

    def _configure(self, count: int, dimension: int, look: PrivateBounds | None = None) -> Any:
        delta, size = self.delta, self.data_size
        # Either would be read off n, which this relation keeps private.
        if self.relation == "add_or_remove_one" and (delta is None or size is None):
            raise ValueError(
                "under add_or_remove_one n is private: declare delta and data_size yourself."
            )
        size = count if size is None else size
        if delta is None:
            delta = 1 / (10 * _validate.positive_int("data_size", size))
        budget = PrivacyBudget(self.epsilon, delta, self.relation)
        solver = _validate.choice("solver", self.solver, ALGORITHMS)
        if self._inferred is not None:
            solver = {"population": "noisy-newton", "privacy": "dp-tr"}[self._inferred]
            # The default stands for either.
            if self.solver not in (solver, "dp-tr"):
                raise ValueError(f"inference takes the solver {solver}: leave {self.solver} out.")
        factory = ALGORITHMS[solver]
        takes = [name for name in inspect.signature(factory).parameters if name not in _SAID]
        options = {} if self.solver_options is None else self.solver_options
        if not isinstance(options, Mapping):
            raise ValueError(
                'solver_options must be a dict of names and values, such as {"steps": 64}, got '
                f"{options!r}."
            )
        # Here, as the factory's own TypeError would suggest no name.
        for name in options:
            _validate.choice(f"option of {solver}", name, takes)

        def make(budget: PrivacyBudget, **setting: Any) -> Algorithm:
            # The argument stays as it was declared, for ``get_params`` and ``clone``.
            trial = copy.copy(self)
            # Of the objective, which the factory is given as a whole.
            if "regularization" in setting:
                trial.regularization = setting.pop("regularization")
            objective = trial._objective(size)
            objective = objective if self.max_weight is None else objective.weighted()
            if self.fit_intercept and not ALL[solver].strongly_convex:
                objective = objective.free_intercept()
            if self.max_records is not None:
                objective = objective.of_units()
            parameters = objective.parameters(dimension)
            arguments = {**options, **setting}
            return factory(objective, budget, data_size=size, dimension=parameters, **arguments)

        if look is not None:
            part = self.epsilon / 10 if self.bounds_epsilon is None else self.bounds_epsilon
            return look.configure(make, budget, part, size)
        settings = self.tune
        if settings is None or settings is False:
            return make(budget)
        if settings is True:
            settings = default_settings(ALL[solver].grid, solver)
        for name in settings if isinstance(settings, Mapping) else ():
            _validate.choice(f"setting of {solver}", name, [*takes, "regularization"])
        return plan(make, settings, budget)

    def _train(self, planned: Any, data: Dataset, look: PrivateBounds | None) -> Solution:
        seed = self.random_state
        key = random_key() if seed is None else None
        arguments: Any = {"key": key, "seed": seed, "ledger": self.ledger, "progress": False}
        if isinstance(planned, SearchPlan):
            tuned = run_plan(planned, data, **arguments)
            self.settings_ = tuned.settings
            if self.ledger is None:
                _unbooked.append(None)
            return tuned.solution
        if look is not None:  # a ledger books both releases there
            data = look.find(
                key=random_key() if seed is None else None, seed=seed, ledger=self.ledger
            )
        elif self.ledger is not None:
            # Booked before anything is asked.
            return run(planned, data, **arguments)
        solution = solve(planned, data, key=key, seed=seed)
        # Of private bounds the training is booked beside them, and reads the same part.
        solution = dataclasses.replace(solution, part=getattr(self.ledger, "part", None))
        if self.ledger is None:
            _unbooked.append(None)  # atomic, where adding 1 is not
        if int(solution.status) == Status.NOT_FINITE:
            warnings.warn(Status.NOT_FINITE.message, RuntimeWarning, stacklevel=4)
        return solution
