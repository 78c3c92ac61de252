"""The accuracy oracle: the noisy fraction of records whose label is predicted correctly."""

from typing import Any

import jax
import jax.numpy as jnp

from dpjax._streaming import shaped
from dpjax._typing import Array, Params, PyTree, pytree_dataclass
from dpjax._units import UnitLoss
from dpjax._wide import Expansion
from dpjax.accounting.wording import ReleaseWords
from dpjax.derivatives import closed_form, count_rows, linear_model, linear_records
from dpjax.oracles.base import Query, Records
from dpjax.sampling import FullBatch
from dpjax.sampling.samplers import expect


@pytree_dataclass(kw_only=True)
class AccuracyQuery(Query):
    """Asks for (number of records whose label is predicted) / n + N(0, stddev^2).

    A record counts 1 if the score of its features has the sign of its label, or of several scores
    the largest is that of its class, and else 0: also at a score of 0, and for a null record, with
    a feature that is not finite or an impossible label.

    Args:
      setting: whose objective predicts labels, of all records; the relation is
        ``"zero_out"`` or ``"replace_one"``, the sensitivity 1 / n under both.
      noise_multiplier: standard deviation over the sensitivity.

    Raises:
      ValueError: for another relation, or an objective that predicts no label.

    Privacy: the Gaussian mechanism. A record counts 0 or 1 whatever it holds, so one that is
      nulled or replaced moves the count by 1 at most. Counts are added exactly: nothing is lost to
      rounding. The score of a record is computed from that record and its place alone.
    """

    def __post_init__(self):
        if self.relation == "add_or_remove_one":
            raise ValueError(
                "accuracy is not released under relation='add_or_remove_one': removing a record "
                "shifts others, and a score near 0 may then round to the other sign. Declare "
                "'zero_out' or 'replace_one'."
            )
        if isinstance(self.objective.loss, UnitLoss):
            raise ValueError(
                "accuracy is that of single records, and is not released of units: estimate it on "
                "public records."
            )
        if not self.objective.predicts:
            raise ValueError(f"{self.objective.name} predicts no label, so it has no accuracy.")

    @property
    def name(self) -> str:
        """What an algorithm asks by."""
        return "accuracy"

    @property
    def words(self) -> ReleaseWords:
        """What the guarantee says of a release beside its numbers."""
        return ReleaseWords(bound="each record counts as 0 or 1")

    @property
    def gradients_per_record(self) -> int:
        """None: labels are predicted."""
        return 0

    @property
    def sampler(self) -> FullBatch:
        """Every record is asked."""
        return expect(FullBatch, self.setting.sampler, "AccuracyQuery")

    def bound(self, params: Params | None = None, **public: Any) -> float:
        """A record counts 1 at most."""
        del params, public
        return 1.0

    @property
    def sensitivity(self) -> float:
        """1 / n; also where a record is replaced, since none counts less than 0."""
        return 1.0 / self.data_size

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        """The accuracy alone."""
        return (("accuracy", float(self.stddev)),)

    def exact(
        self, records: Records, params: Params, mask: Array | None = None, **public: Any
    ) -> tuple[Expansion, ...]:
        """Returns the number of records whose label is predicted, (). NOT PRIVATE."""
        del public
        if (linear := self.objective.linear) is not None:
            records = closed_form.prepared(linear, records, mask)
            return (linear_model.count_correct(linear, records, params),)
        return (count_rows(records, mask, lambda rows: self._correct(rows, params)),)

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        """Returns the noise on the count, of which one record moves 1."""
        del params, public
        return (self.noise_multiplier,)

    def finish(self, noisy: tuple[Array, ...], params: Params) -> Array:
        """Returns the noisy accuracy, shape (); it may lie outside of [0, 1]."""
        del params
        return noisy[0] / self.data_size

    def parts_of(self, answer: Array) -> tuple[Array, ...]:
        """Returns the noisy count."""
        return (answer * self.data_size,)

    def check_examples(self, examples: PyTree, params: Params) -> None:
        """Raises unless the examples are rows with labels, which the model scores one by one.

        Raises:
          ValueError: before anything is spent, since the question comes when the steps are over.

        Privacy: reads shapes and dtypes, no value; no message names n.
        """
        if not (isinstance(examples, tuple) and len(examples) == 2):
            raise ValueError("accuracy needs examples (x, y): pass the tuple (x, y) or a Dataset.")
        try:
            jax.eval_shape(self._correct, shaped(examples), params)
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"the model of {self.objective.name} does not score rows of these x: {error}"
            ) from error

    def _correct(self, records: Records, params: Params) -> Array:
        if (linear := self.objective.linear) is not None:
            rows = linear_records.prepare(records, labels=linear.labels)
            return linear_model.are_correct(linear, rows, params)
        x, y = records
        valid = (jnp.abs(y) == 1) & jnp.isfinite(x).all(axis=1)
        # One row at a time, so that no model can let a record decide about another.
        score = self.objective.model.score  # pyright: ignore
        scores = jax.vmap(lambda row: score(params, row[None]))(jnp.where(valid[:, None], x, 0))
        if scores.shape != (len(y), 1):
            raise ValueError("there must be one score for each row.")
        return valid & (scores[:, 0] * y > 0)
