"""Private linear models for scikit-learn: a classifier and two regressions."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin

from dpjax import _validate, objectives
from dpjax.datasets.labels import declared_classes, encoded
from dpjax.estimators import arrays
from dpjax.estimators.base import PrivateEstimator
from dpjax.objectives import Objective, huber, tukey, welsch_residual
from dpjax.results.prediction import probabilities

_LOSSES = {"huber": huber, "tukey": tukey, "welsch": welsch_residual}


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class DPLogisticRegression(ClassifierMixin, PrivateEstimator):
    """Logistic regression whose whole ``fit`` is (epsilon, delta)-differentially private.

    Of two classes, or of several by softmax regression, all in one training.

    What describes the data is declared, never read off them: the labels, and the range of each
    feature or a bound on the norm of a row. A record that does not fit what was declared is no
    error, which would tell of it. A value out of its range is clamped and a row that is too long
    scaled down; a record with a missing value or another label contributes exactly zero.

    Args:
      epsilon: of the budget that one ``fit`` spends.
      delta: of that budget; by default 1 / (10 n).
      solver: a name of ``dpjax.ALGORITHMS``.
      classes: the labels, two or more. Of two the larger is the positive class, as scikit-learn has
        it; of 0 and 1, -1 is 0, and of -1 and 1, 0 is -1. A record with any other label contributes
        nothing, and no error says so: the guarantee names the labels that count, and
        ``dpjax.datasets.check`` counts the others for the data's owner.
      bounds: (lower, upper), each a number or one per feature; or of a data frame ``{column:
        (lower, upper)}``. Values are clamped to them and mapped to [0, 1]; each row, with its
        intercept, is then divided by its own norm, see ``rows``.
        Or ``"private"``: the edges around all but the outermost values of each feature, found
        within public ``limits`` by a noisy histogram, as the schema's ``bounds = "private"``.
      limits: for private bounds, (lower, upper) or by column, as ``bounds``: what a feature can
        hold at all, not read off the data.
      bounds_epsilon: what of ``epsilon`` private bounds spend; by default a tenth.
      data_norm: in place of ``bounds``, the norm that a row has at most; longer ones are scaled
        down to it.
      relation: what neighbouring data sets are, see ``PrivacyBudget``. Under
        ``"add_or_remove_one"`` n is private: declare ``delta`` and ``data_size``.
      data_size: declared number of records, or of units; by default that of the data.
      fit_intercept: whether to append a constant feature. It has no penalty, but with
        ``solver="dp-svrg"``, whose theory needs one.
      regularization: lambda of the penalty lambda / 2 |w|^2, on the weights of the scaled rows; by
        default 2 / (n epsilon), which grows and falls with the noise, and 0.1 / (n epsilon) for
        inference; none with ``solver="dp-fc"``, for many features. 0 for none.
      random_state: None for noise that cannot be repeated, as a release needs; an integer for
        research, which makes ``releasable_`` False.
      solver_options: further arguments of the solver's factory, such as ``{"steps": 64}``.
      ledger: a ``Ledger`` or its file. Each ``fit`` is booked before it asks the data anything, or
        refused; cross-validation is as many fits. Copies share the ``Ledger``; an estimator that is
        pickled, as for another process, takes the file.
      unit: what is protected, in the guarantee's words: a row, or what ``groups`` names.
      max_records: the largest number of records of one unit that count, where ``fit`` is given
        ``groups``; declared, not read off the data.
      unit_type: what ``groups`` are, ``"number"`` or ``"text"``, see ``dpjax.datasets.group``.
      max_weight: the largest ``sample_weight`` that ``fit`` can be given; declared, not read off.
      tune: None to train with the settings given. Otherwise a private random search, see
        ``dpjax.tune``, within the same budget: True for the solver's default grid, or names and
        values, such as ``{"regularization": [1e-4, 1e-3], "radius": [3, 12]}``, of
        ``regularization`` and of options of the solver. A ledger then needs a Renyi order.
      inference: whether standard errors, p-values and intervals are asked for, of ``summary()``:
        True (or ``"population"``) for what covers sampling and privacy noise, by the solver
        ``noisy-newton``; ``"privacy"`` for noise alone. Needs ``bounds``.
      rows: ``"own_norm"``, or ``"constant"``: values within bounds are mapped to [-1, 1] and all
        rows divided by one constant, so that coefficients are log-odds per unit. Which predicts
        better depends on the data, see ``benchmarks/rows.py``; inference takes the constant.
      class_weight: how much the loss of a record counts by its class, ``{label: number}`` of all
        classes, declared; their ratios count, see ``Objective.weighted``. ``"balanced"`` would
        read the labels and is refused.

    Attributes:
      coef_: weights (1, p) for features in their own units; (K, p) of K > 2 classes.
      intercept_: (1,) or (K,). ``X @ coef_[0] + intercept_`` has the sign of ``decision_function``
        for features within their bounds; with ``data_norm`` it is the decision, for rows within it.
      classes_: the labels, sorted.
      coefficients_: the same by name, with what is known of their errors, see ``Coefficients``.
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

    With ``fit(X, y, groups)`` all records of a unit, such as a person, are protected together: the
    loss of a unit is the mean of those of its records, see ``dpjax.datasets.group``.

    scikit-learn's own checks hold but for these, which no private estimator can pass: data with a
    NaN, an infinite label, numbers as labels of a regression, a cell that is no number, or weights
    of 0 must not raise, since each is about records; and a weight of 2 is not two records.

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

    classes: Sequence[Any] | None = None
    tune: bool | Mapping[str, Sequence[Any]] | None = None
    class_weight: Mapping[Any, float] | None = None
    rows: str = "own_norm"

    _declared = np.array((0, 1))  # until ``fit`` has read the declaration

    @property
    def _linear(self) -> bool:
        # A row's direction decides its class, and dividing it by its own norm leaves that.
        return _validate.choice("rows", self.rows, ("own_norm", "constant")) == "constant"

    @property
    def _scored(self) -> tuple[str, ...]:
        return tuple(map(str, self.classes_)) if len(self.classes_) > 2 else ()

    def _encode(self, y: Any) -> tuple[np.ndarray, dict[str, Any]]:
        cells, kind = arrays.labels(y)
        if self.classes is None:
            raise ValueError(
                "classes is required: declare the labels, such as classes=(0, 1). Reading "
                "them off the data would reveal whether a record with a label is among them."
            )
        # Sorted, so that the larger of two labels is the second, +1, as scikit-learn has it.
        self._declared = arrays.declared_labels(self.classes)
        classes = tuple(self._declared.tolist())
        return encoded(cells, declared_classes(classes, "y", kind)), {"classes": classes}

    def _explain(self, params: np.ndarray) -> None:
        self.classes_ = self._declared
        # Of two classes there is one score, of K there are K.
        self._weights = params.reshape(len(self.classes_) if len(self.classes_) > 2 else 1, -1)
        in_units = [self._scaling.in_units(weights) for weights in self._weights]
        self.coef_ = np.stack([weights for weights, _ in in_units])
        self.intercept_ = np.array([constant for _, constant in in_units])

    def decision_function(self, X: Any) -> np.ndarray:
        """Returns the log-odds (n,) of the positive class, or the scores (n, K) of K > 2 classes.

        Of rows scaled as those of ``fit``.

        Raises:
          ValueError: for a value that is missing or no number, or other features than in ``fit``.
          NotFittedError: before ``fit``.
        """
        rows = self._rows(X)
        # The intercept is the last feature of a scaled row, and needs no term of its own.
        scores = rows @ self._weights.T
        return scores if len(self.classes_) > 2 else scores[:, 0]

    def predict(self, X: Any) -> np.ndarray:
        """Returns the likeliest label (n,) of each row."""
        scores = self.decision_function(X)
        if scores.ndim == 2:
            return self.classes_[np.argmax(scores, axis=1)]
        # A score of 0 is the first class, as in linear classifiers of scikit-learn.
        return self.classes_[(scores > 0).astype(int)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns probabilities (n, K), in the order of ``classes_``."""
        return probabilities(self.decision_function(X))

    def _objective(self, size: int) -> Objective:
        strength, count = self._strength(size), len(self._declared)
        binary = objectives.logistic_l2(strength) if strength else objectives.logistic()
        objective = objectives.softmax(count, strength) if count > 2 else binary
        if self.class_weight is None:
            return objective
        weights = self.class_weight
        if isinstance(weights, Mapping):
            weights = [weights.get(label, math.nan) for label in self._declared.tolist()]
        return objective.weighted(weights)


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class _PrivateRegression(RegressorMixin, PrivateEstimator):
    """A linear model of a number, whose declared range is mapped to [-1, 1]."""

    target_bounds: tuple[float, float] | None = None

    # Rows that are divided by norms of their own would make a prediction non-linear in the
    # features, and `coef_` could not give it.
    _linear = True

    def _encode(self, y: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self._target = self._range()
        # In the label's own units: the objective knows the scaled label alone.
        return arrays.numbers(y, *self._target), {"label_bounds": self._target}

    def _explain(self, params: np.ndarray) -> None:
        low, high = self._target
        weights, constant = self._scaling.in_units(params)
        # The label is mapped to [-1, 1], so a prediction is mapped back by these.
        self._half, self._middle = (high - low) / 2, (high + low) / 2
        self.coef_, self.intercept_ = self._half * weights, self._middle + self._half * constant

    def predict(self, X: Any) -> np.ndarray:
        """Returns the prediction (n,) for each row, whose features are clamped as those of ``fit``.

        Raises:
          ValueError: for a value that is missing or no number, or other features than in ``fit``.
          NotFittedError: before ``fit``.
        """
        rows = self._rows(X)
        # By the scaled rows and not by `coef_`, so that features are clamped as in `fit`.
        return self._middle + self._half * (rows @ self._params)

    def _range(self) -> tuple[float, float]:
        if self.target_bounds is None:
            raise ValueError(
                "target_bounds is required: declare the lowest and highest possible value of y, "
                "such as target_bounds=(0, 100). Reading them off the data would release them."
            )
        return _validate.interval("target_bounds", self.target_bounds)


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class DPLinearRegression(_PrivateRegression):
    """Least squares whose whole ``fit`` is (epsilon, delta)-differentially private.

    What describes the data is declared, never read off them: the range of the target, and that of
    each feature or a bound on the norm of a row. A value out of its range is clamped; a record with
    a missing value, or a target out of its range, contributes exactly zero.

    The default solver is DP-TR in one step from 0, which is ridge regression from noisy sufficient
    statistics: the gradient there is X^T y / n and the Hessian X^T X / n. More steps, such as
    ``solver_options={"steps": 3}``, explain a little more where records are many.

    Args:
      epsilon: of the budget that one ``fit`` spends.
      delta: of that budget; by default 1 / (10 n).
      solver: a name of ``dpjax.ALGORITHMS``.
      target_bounds: (low, high) of the target, in its units; required.
      bounds: (lower, upper), each a number or one per feature; or of a data frame ``{column:
        (lower, upper)}``. Values are clamped to them and mapped to [-1, 1], and all rows divided by
        one constant, so that the model is linear in the features. Or ``"private"``: the edges
        around all but the outermost values of each feature, found within public ``limits`` by a
        noisy histogram.
      limits: for private bounds, (lower, upper) or by column, as ``bounds``: what a feature can
        hold at all, not read off the data.
      bounds_epsilon: what of ``epsilon`` private bounds spend; by default a tenth.
      data_norm: in place of ``bounds``, the norm that a row has at most; longer ones are scaled
        down to it.
      relation: what neighbouring data sets are, see ``PrivacyBudget``. Under
        ``"add_or_remove_one"`` n is private: declare ``delta`` and ``data_size``.
      data_size: declared number of records, or of units; by default that of the data.
      fit_intercept: whether to append a constant feature. It has no penalty, but with
        ``solver="dp-svrg"``, whose theory needs one.
      regularization: lambda of the penalty lambda / 2 |w|^2, on the weights of the scaled rows; by
        default 1 / (n epsilon), and 0.1 / (n epsilon) for inference. 0 for none.
      random_state: None for noise that cannot be repeated, as a release needs; an integer for
        research, which makes ``releasable_`` False.
      inference: whether standard errors, p-values and intervals are asked for, of ``summary()``:
        True (or ``"population"``) for what covers sampling and privacy noise, by the solver
        ``noisy-newton``; ``"privacy"`` for noise alone. Needs ``bounds``.
      the others: those of ``DPLogisticRegression``.

    Attributes:
      coef_: weights (p,) for features in their own units.
      intercept_: a number. ``X @ coef_ + intercept_`` is the prediction for features within their
        bounds.
      coefficients_: the same by name, with what is known of their errors, see ``Coefficients``.
      n_features_in_: number of features p.
      guarantee_: what the fit guarantees, in words to publish.
      releasable_: whether that may be relied on; False with an integer ``random_state``.
      solution_: the ``Solution`` of the training, in the units of the scaled rows.

    Privacy: all fitted attributes are covered by the guarantee; predictions for the training data
      tell of those data.

    >>> import numpy as np
    >>> from dpjax.estimators import DPLinearRegression
    >>> x = np.random.default_rng(0).uniform(0, 10, (5000, 2))
    >>> y = 3 * x[:, 0] - 2 * x[:, 1] + 20
    >>> model = DPLinearRegression(target_bounds=(0, 50), bounds=(0, 10), random_state=0)
    >>> bool(model.fit(x, y).score(x, y) > 0.95)
    True
    """

    def _objective(self, size: int) -> Objective:
        return objectives.least_squares(self._strength(size))


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class DPRobustRegression(_PrivateRegression):
    """Regression with a loss that outliers weigh little in, private as ``DPLinearRegression`` is.

    Args:
      loss: ``"huber"``, ``"tukey"`` (the biweight) or ``"welsch"``; the last two are not convex.
      scale: the residual, in the target's units, from where on a record counts less (Huber) or
        hardly at all; by default 0.2, 0.8 and 0.6 of half the declared range.
      the others: those of ``DPLinearRegression``.

    Attributes and privacy are those of ``DPLinearRegression``.

    >>> import numpy as np
    >>> from dpjax.estimators import DPRobustRegression
    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(0, 10, (5000, 1))
    >>> y = np.where(rng.uniform(size=5000) < 0.2, 100, 3 * x[:, 0] + 20)  # a fifth are outliers
    >>> model = DPRobustRegression(
    ...     loss="tukey", target_bounds=(0, 100), bounds=(0, 10), random_state=0)
    >>> bool(abs(model.fit(x, y).coef_[0] - 3) < 0.3)
    True
    """

    loss: str = "huber"
    scale: float | None = None

    def _objective(self, size: int) -> Objective:
        loss, strength = _LOSSES[_validate.choice("loss", self.loss, _LOSSES)], self._strength(size)
        if self.scale is None:
            return loss(strength)
        low, high = self._range()
        # Residuals are of the scaled label, whose range has length 2.
        return loss(strength, 2 * _validate.positive("scale", self.scale) / (high - low))
