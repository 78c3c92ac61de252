"""``DPLogisticRegression``: private logistic regression as a scikit-learn classifier."""

import inspect
import os
import secrets
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from dpjax import _validate, objectives
from dpjax._typing import Relation
from dpjax.accounting import Ledger, PrivacyBudget
from dpjax.algorithms import ALGORITHMS, Algorithm, Status
from dpjax.baselines import BASELINES, EVERY
from dpjax.datasets import Dataset
from dpjax.driver import Solution, guarantee, run, solve
from dpjax.estimators import arrays, rows
from dpjax.mechanisms import random_key
from dpjax.tuning import SearchPlan, default_settings, plan, run_plan

# What ``fit`` says itself; the rest of a factory's arguments are options of the solver.
_SAID = ("objective", "budget", "data_size", "dimension")
# Chosen on ijcnn1 and randhie, see ``benchmarks/estimator.py``.
_PENALTY = 2.0
# Fits of this process that no ledger has booked.
_PROCESS = secrets.token_hex(8)
_unbooked: list[None] = []
_BEFORE = """\
Also not covered: earlier steps of a scikit-learn Pipeline that are fitted on the data, such as
StandardScaler, PCA or SelectKBest. Scaling by declared bounds costs no privacy."""
_SEVERAL = """\
One of {fits} fits in this process without a ledger. This guarantee covers one fit alone: the
privacy losses of all fits on the same records add up. Pass ledger= to account for them together."""


class DPLogisticRegression(ClassifierMixin, BaseEstimator):
    """Binary logistic regression whose whole ``fit`` is (epsilon, delta)-differentially private.

    What describes the data is declared, never read off them: the two labels, and the range of each
    feature or a bound on the norm of a row. A record that does not fit what was declared is no
    error, which would tell of it. A value out of its range is clamped and a row that is too long
    scaled down; a record with a missing value or another label contributes exactly zero.

    Args:
      epsilon: of the budget that one ``fit`` spends.
      delta: of that budget; by default 1 / (10 n).
      solver: a name of ``dpjax.ALGORITHMS`` or ``dpjax.baselines.BASELINES``.
      classes: the two labels. The larger is the positive class, as scikit-learn has it. A record
        with any other label contributes nothing, and no error says so: the guarantee names the
        labels that count, and ``dpjax.datasets.check`` counts the others for the data's owner.
      bounds: (lower, upper), each a number or one per feature. Values are clamped to them and
        mapped to [0, 1]; each row, with its intercept, is then divided by its own norm.
      data_norm: in place of ``bounds``, the norm that a row has at most; longer ones are scaled
        down to it.
      relation: what neighbouring data sets are, see ``PrivacyBudget``. Under
        ``"add_or_remove_one"`` n is private: declare ``delta`` and ``data_size``.
      data_size: declared number of records; by default that of ``X``.
      fit_intercept: whether to append a constant feature, which is regularized like the others.
      regularization: lambda of the penalty lambda / 2 |w|^2, on the weights of the scaled rows; by
        default 2 / (n epsilon), which grows and falls with the noise. 0 for none.
      random_state: None for noise that cannot be repeated, as a release needs; an integer for
        research, which makes ``releasable_`` False.
      solver_options: further arguments of the solver's factory, such as ``{"steps": 64}``.
      ledger: a ``Ledger`` or its file. Each ``fit`` is booked before it asks the data anything, or
        refused; cross-validation is as many fits. Copies share the ``Ledger``; an estimator that is
        pickled, as for another process, takes the file.
      unit: what one row stands for, in the guarantee's words.
      tune: None to train with the settings given. Otherwise a private random search, see
        ``dpjax.tune``, which the same budget covers: True for the solver's default grid, or names
        and values, such as ``{"regularization": [1e-4, 1e-3], "radius": [3, 12]}``, of
        ``regularization`` and of options of the solver. A ledger then needs a Renyi order.

    Attributes:
      coef_: weights (1, p) for features in their own units.
      intercept_: (1,). ``X @ coef_[0] + intercept_`` has the sign of ``decision_function`` for
        features within their bounds; with ``data_norm`` it is the decision, for rows within it.
      classes_: the two labels, sorted.
      n_features_in_: number of features p.
      guarantee_: what the fit guarantees, in words to publish. Of several fits in this process
        without a ledger it says that it is one; those of other processes it cannot know.
      releasable_: whether that may be relied on; False with an integer ``random_state``.
      solution_: the ``Solution`` of the training, in the units of the scaled rows.
      settings_: the settings that a search chose; empty without one.

    Privacy: all fitted attributes are covered by the guarantee. What they are applied to is not:
      predictions and scores on the training data tell of those data. Nor is what was fitted on the
      data before, as a ``StandardScaler`` in a ``Pipeline``: ``bounds`` do the scaling.

    Another epsilon compiles nothing anew: a search over epsilon compiles once for the folds, if
    they are of one size, and once for the fit on all records.

    scikit-learn's own checks hold but for these, which no private estimator can pass: data with a
    NaN, an infinite label, numbers as labels of a regression, or a cell that is no number must not
    raise, since each is about single records.

    >>> import numpy as np
    >>> from dpjax.estimators import DPLogisticRegression
    >>> x = np.random.default_rng(0).uniform(0, 100, (2000, 2))
    >>> y = np.where(x[:, 0] > x[:, 1], "rain", "sun")
    >>> model = DPLogisticRegression(classes=("rain", "sun"), bounds=(0, 100), random_state=0)
    >>> bool(model.fit(x, y).score(x, y) > 0.9)
    True
    >>> print(model.guarantee_.splitlines()[2])
    DP-TR is (1, 5e-05)-differentially private.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        solver: str = "dp-tr",
        *,
        classes: Sequence[Any] | None = None,
        bounds: tuple[Any, Any] | None = None,
        data_norm: float | None = None,
        relation: Relation = "zero_out",
        data_size: int | None = None,
        fit_intercept: bool = True,
        regularization: float | None = None,
        random_state: int | None = None,
        solver_options: Mapping[str, Any] | None = None,
        ledger: Ledger | str | os.PathLike | None = None,
        unit: str = "row",
        tune: bool | Mapping[str, Sequence[Any]] | None = None,
    ):
        self.epsilon = epsilon
        self.delta = delta
        self.solver = solver
        self.classes = classes
        self.bounds = bounds
        self.data_norm = data_norm
        self.relation: Relation = relation
        self.data_size = data_size
        self.fit_intercept = fit_intercept
        self.regularization = regularization
        self.random_state = random_state
        self.solver_options = solver_options
        self.ledger = ledger
        self.unit = unit
        self.tune = tune

    def fit(self, X: Any, y: Any) -> "DPLogisticRegression":
        """Trains privately, which spends the budget once.

        Args:
          X: (n, p) numbers: an array, a list of lists, or a data frame. A cell that is no real
            number is a missing value.
          y: (n,) labels: an array, a list, or a column of a data frame.

        Returns:
          The estimator itself.

        Raises:
          ValueError: before anything is spent, for arguments that do not fit together and arrays of
            the wrong shape or dtype; never for a single record, but for lists of unequal length.
        """
        if y is None:
            raise ValueError("fit requires y to be passed, but the target y is None.")
        x, labels = arrays.features(X), arrays.labels(y)
        if len(x) != len(labels.cells):
            raise ValueError("X and y must have one length: pass one label in y for each row of X.")
        self._note_features(X, x, reset=True)
        classes = arrays.two_labels(self._declared_classes(labels.cells))
        scaling = rows.declare(self.bounds, self.data_norm, bool(self.fit_intercept), x.shape[1])
        planned = self._configure(len(x), x.shape[1] + scaling.intercept)
        data = Dataset(
            scaling.rows(x),
            arrays.signs(labels, classes),
            unit=_validate.word("unit", self.unit),
            max_norm=1.0,
        )
        self.settings_: dict[str, Any] = {}
        self.solution_ = self._train(planned, data)
        text = guarantee.statement(
            self.solution_.algorithm,
            data.unit,
            self.solution_.reproducible,
            tuple(classes.tolist()),
        )
        self._guarantee = f"{text}\n{_BEFORE}"
        self._fits = (_PROCESS, len(_unbooked)) if self.ledger is None else None
        self.releasable_ = self.solution_.releasable
        self.classes_ = classes
        self._scaling = scaling
        self._params = np.asarray(self.solution_.params, np.float64)
        weights, constant = scaling.in_units(self._params)
        self.coef_, self.intercept_ = weights[None], np.array([constant])
        return self

    @property
    def guarantee_(self) -> str:
        """What the fit guarantees, in words to publish."""
        if self._fits is None:
            return self._guarantee
        process, fits = self._fits
        if process == _PROCESS:
            fits = len(_unbooked)  # those after this one count as well
        return self._guarantee if fits == 1 else f"{self._guarantee}\n{_SEVERAL.format(fits=fits)}"

    def decision_function(self, X: Any) -> np.ndarray:
        """Returns the log-odds (n,) of the positive class, on rows scaled as those of ``fit``.

        Raises:
          ValueError: for a value that is missing or no number, or other features than in ``fit``.
          NotFittedError: before ``fit``.
        """
        check_is_fitted(self)
        x = arrays.features(X)
        self._note_features(X, x, reset=False)
        check_array(x, input_name="X", estimator=self)
        return self._scaling.rows(x) @ self._params

    def predict(self, X: Any) -> np.ndarray:
        """Returns the likelier label (n,) of each row."""
        positive = self.decision_function(X) > 0
        return self.classes_[positive.astype(int)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns probabilities (n, 2), in the order of ``classes_``."""
        odds = self.decision_function(X)
        # Each from the smaller exponential, so that neither is 1 minus a number near 1.
        return np.exp(-np.logaddexp(0, np.stack([odds, -odds], axis=1)))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _note_features(self, given: Any, x: np.ndarray, reset: bool) -> None:
        # Their number, and their names in a data frame: set by ``fit``, then compared.
        named: Any = given if hasattr(given, "columns") else x
        validate_data(self, named, reset=reset, skip_check_array=True)

    def _declared_classes(self, y: np.ndarray) -> Sequence[Any]:
        del y
        if self.classes is None:
            raise ValueError(
                "classes is required: declare the two labels, such as classes=(0, 1). Reading "
                "them off the data would reveal whether a record with a label is among them."
            )
        return self.classes

    def _configure(self, count: int, dimension: int) -> Algorithm | SearchPlan:
        delta, size = self.delta, self.data_size
        if self.relation == "add_or_remove_one" and (delta is None or size is None):
            raise ValueError(
                "under add_or_remove_one n is private: declare delta and data_size yourself."
            )
        size = count if size is None else size
        if delta is None:
            delta = 1 / (10 * _validate.positive_int("data_size", size))
        factories = ALGORITHMS | BASELINES
        factory = factories[_validate.choice("solver", self.solver, factories)]
        takes = [name for name in inspect.signature(factory).parameters if name not in _SAID]
        options = {} if self.solver_options is None else self.solver_options
        if not isinstance(options, Mapping):
            raise ValueError(
                'solver_options must be a dict of names and values, such as {"steps": 64}, got '
                f"{options!r}."
            )
        for name in options:
            _validate.choice(f"option of {self.solver}", name, takes)

        def make(budget: PrivacyBudget, **setting: Any) -> Algorithm:
            strength = setting.pop("regularization", self.regularization)
            if strength is None:
                strength = _PENALTY / (size * budget.epsilon)
            strength = _validate.non_negative("regularization", strength)
            objective = objectives.logistic_l2(strength) if strength else objectives.logistic()
            given = {**options, **setting}
            return factory(objective, budget, data_size=size, dimension=dimension, **given)

        budget = PrivacyBudget(self.epsilon, delta, self.relation)
        if self.tune is None or self.tune is False:
            return make(budget)
        settings = self.tune
        if settings is True:
            settings = default_settings(EVERY[self.solver].grid, self.solver)
        for name in settings if isinstance(settings, Mapping) else ():
            _validate.choice(f"setting of {self.solver}", name, [*takes, "regularization"])
        return plan(make, settings, budget)

    def _train(self, planned: Algorithm | SearchPlan, data: Dataset) -> Solution:
        seed = self.random_state
        key = random_key() if seed is None else None
        kept: Any = {"key": key, "seed": seed, "ledger": self.ledger, "progress": False}
        if isinstance(planned, SearchPlan):
            tuned = run_plan(planned, data, **kept)
            self.settings_ = tuned.settings
            if self.ledger is None:
                _unbooked.append(None)
            return tuned.solution
        if self.ledger is not None:
            return run(planned, data, **kept)
        solution = solve(planned, data, key=key, seed=seed)
        _unbooked.append(None)  # atomic, where adding 1 is not
        if int(solution.status) == Status.NOT_FINITE:
            warnings.warn(Status.NOT_FINITE.message, RuntimeWarning, stacklevel=3)
        return solution
