"""SVRG as printed (Wang, Ye and Xu 2017): an exact gradient at the anchor, noise on each step."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import dpjax
from dpjax.accounting import Event, PrivacyBudget, Release, calibrate
from dpjax.algorithms import SvrgEpochs, base, dp_svrg
from dpjax.derivatives import clipped_grad, most_rows
from dpjax.objectives import Objective
from dpjax.oracles import Evaluations, Expansion, Query, accumulate


@dpjax.pytree_dataclass(kw_only=True)
class ExactAnchorQuery(Query):
    """Asks for (how clipped gradients of a batch change from the anchor) / B + their mean there.

    That mean is over all n records and exact: a secret that is computed for each answer, and is in
    no state, history, solution or checkpoint. Noise N(0, stddev^2 I) is added to the whole.

    Args:
      noise_multiplier: standard deviation over what a record that is drawn moves the mean.
      clip_norm: C, the bound on one record's gradient at either point.
      setting: n is the divisor of the mean at the anchor; the relation ``"zero_out"`` or
        ``"add_or_remove_one"``, no other has an accounting; the sampler ``Poisson``, of expected
        size B.

    Privacy: every step moves by C / n with a record that is not drawn, and by 2 C / B + C / n at
      most with one that is: a mixture of Gaussians. The two parts of a record's gradient at the
      anchor, - 1 / B and 1 / n, are not counted as cancelling: two programs compute them, which
      may round otherwise. The exact mean is un-noised and must never be released.

    Reference: Wang, Ye and Xu (2017), algorithm 1, line 6.
    """

    clip_norm: jax.Array | float

    gradients_per_record = 2  # at the parameters and at the anchor

    @property
    def name(self) -> str:
        return "anchored"

    def bound(self, params=None, **public):
        """What a drawn record adds to B times the release at most."""
        return (2 + self._share) * self.clip_norm

    @property
    def in_any_row(self) -> bool:
        """Whether a contribution is the same bits in any row; the sums are ``clipped_grad``'s."""
        return self.objective.linear is not None

    @property
    def charged_rows(self) -> int:
        """Of the sum at the anchor; a batch has no more rows than it."""
        return most_rows(self.data_size, self.relation, self.in_any_row)

    @property
    def undrawn_shift(self) -> float:
        """What a record that is not drawn adds, over ``bound``, rounding of both included."""
        # Not in float32, in which a leaf may be: epsilon would come back a digit larger.
        share = float(self.divisor) / self.data_size
        alone = share * (1 + self.rounding_error_of(self.data_size))
        # A record that shifts others makes a batch round otherwise even where it is not drawn.
        alone += 2 * self._batch_slack if self.permutation_invariant else 0.0
        return alone / ((2 + share) * (1 + self._slack_at(share)))

    @property
    def rounding_error(self) -> Any:
        """What rounding adds to the distance of neighbouring sums, in contributions."""
        return self._slack_at(self._share)

    def _slack_at(self, share: Any) -> Any:
        whole = self.rounding_error_of(self.data_size)
        return (2 * self._batch_slack + share * whole) / (2 + share)

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        return (("gradient", float(self.stddev)),)

    def releases(self, count: int) -> tuple[Release, ...]:
        """Returns one Gaussian an answer, which also moves with a record that is not drawn.

        Raises:
          ValueError: without Poisson batches, or under ``replace_one``.
        """
        return tuple(
            dataclasses.replace(release, undrawn_shift=self.undrawn_shift)  # pyright: ignore[reportCallIssue]
            for release in super().releases(count)
        )

    def secret_arguments(self, key, records, params, **public) -> dict[str, Any]:
        """Returns the exact sum of clipped gradients at ``anchor``, of all records: SECRET."""
        return {"anchor_sum": self.anchor_sum(records, public["anchor"])}

    def anchor_sum(self, records, anchor) -> Expansion:
        """Returns the sum of clipped gradients at ``anchor``, (p,): SECRET, un-noised."""
        return self._clipped.wide(anchor, records)

    def exact(self, records, params, mask=None, **public) -> tuple[Expansion, ...]:
        """Returns the sum of how gradients change, plus the exact anchor's share. NOT PRIVATE.

        ``public`` has ``anchor``, released before, and the secret ``anchor_sum``.
        """
        here, there = (
            self._clipped.wide(point, records, mask) for point in (params, public["anchor"])
        )
        # One sum before the noise: apart, the exact part would need noise of its own.
        change = accumulate(here, -jnp.stack(there.terms))
        # In float32 the product would be off by as much as a record contributes.
        with jax.enable_x64(True):
            terms = jnp.stack(public["anchor_sum"].terms).astype(jnp.float64)
            share = jnp.asarray(self._share).astype(jnp.float64)
            return (accumulate(change, share * terms),)

    def likelihood_terms(self, answer, records, params, mask=None, **public):
        """As ``Query``, with the secret of all ``records``. NOT PRIVATE."""
        public = public | {"anchor_sum": self.anchor_sum(records, public["anchor"])}
        return super().likelihood_terms(answer, records, params, mask, **public)

    @property
    def _clipped(self):
        return clipped_grad(
            self.objective.data_term,
            clip_norm=self.clip_norm,
            permutation_invariant=self.permutation_invariant,
        )

    @property
    def _share(self) -> Any:
        return self.divisor / self.data_size

    @property
    def _batch_slack(self) -> float:
        return self.rounding_error_of(self.sampler.max_batch_size)


@dpjax.pytree_dataclass
class ExactAnchor(SvrgEpochs):
    """Configuration of the paper's form; made by ``exact_anchor``."""

    query: ExactAnchorQuery

    @property
    def title(self) -> str:
        """Name for people."""
        return f"{super().title} (exact anchor, secret)"

    @property
    def queries(self) -> tuple[Query, ...]:
        """The one query."""
        return (self.query,)

    @property
    def event(self) -> Event:
        """``steps`` answers."""
        return self.query.event(int(self.steps))

    @property
    def evaluations(self) -> Evaluations:
        """Two gradients of each record of a batch, and one of every record at each anchor.

        As the paper counts. What runs here takes the sum at the anchor anew at every step, so that
        nothing secret is kept from one step to the next.
        """
        steps = self.query.evaluations(int(self.steps))
        whole = dataclasses.replace(self.query, setting=self.query.setting.of_all)
        whole = whole.evaluations(self.epochs)
        # Of the two gradients that an answer takes the anchor takes one.
        return Evaluations(*(of + all_of // 2 for of, all_of in zip(steps, whole, strict=True)))

    def estimate(self, state, refresh, ask):
        """Returns v_t; nothing is released at the anchor."""
        return state.gradient, ask(self.query, state.params, anchor=state.anchor)


def exact_anchor(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    make: Callable[..., Any] = dp_svrg,
    accountant: str = "pld",
    **settings: Any,
) -> ExactAnchor:
    """Returns DP-SVRG or DP-SVRG++ with the exact gradient at the anchor, calibrated to the budget.

    Args:
      objective: what to minimise; its regularizer has a proximal operator.
      budget: of a whole run.
      data_size: n.
      dimension: p.
      make: ``dp_svrg`` or ``dp_svrg_plus_plus``, whose steps, epochs and batches are taken.
      accountant: ``"pld"``; there is no Renyi bound for a mixture.
      **settings: of ``make``.

    Raises:
      ValueError: as ``make``; under ``replace_one``, for which no accounting is proved; or for
        batches of all records.

    Privacy: every step releases the gradient of a Poisson batch, variance reduced by an exact sum
      of all records, with Gaussian noise.

    Reference: Wang, Ye and Xu (2017), algorithms 1 and 2 as printed. Their formula for the noise is
      not taken: at batch size 1 its literal constant leaves a delta of 0.86.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = exact_anchor(dpjax.objectives.logistic_l2(1e-2), budget, data_size=10_000,
    ...     dimension=10, epochs=4)
    >>> [(release.name, release.count) for release in algorithm.event.releases]
    [('anchored', 248)]
    """
    _check_accounted(budget, accountant)
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    sizes = {"data_size": data_size, "dimension": dimension}
    split = make(objective, budget, **sizes, accountant=accountant, **settings)
    if (setting := split.difference.setting).sampler.reads_all:
        raise ValueError(
            f"an exact anchor needs sampled batches; batch_size={data_size} uses all records, "
            "where the gradient at the anchor cancels. Use dp_gradient_descent, or a smaller "
            "batch_size."
        )

    def query(multiplier: float) -> ExactAnchorQuery:
        clip_norm = split.difference.clip_norm
        return ExactAnchorQuery(setting=setting, noise_multiplier=multiplier, clip_norm=clip_norm)

    steps = int(split.steps)
    calibrated = query(calibrate(lambda scale: query(scale).event(steps), budget, accountant))
    shared = {field.name: getattr(split, field.name) for field in dataclasses.fields(SvrgEpochs)}
    exact = ExactAnchor(query=calibrated, **shared)
    problem.check_spent(exact.event)
    return exact


def _check_accounted(budget: PrivacyBudget, accountant: str) -> None:
    if budget.relation == "replace_one":
        raise ValueError(
            "an exact anchor has no proven accounting under relation='replace_one': the natural "
            "dominating pair is not the worst case. Declare 'zero_out' or 'add_or_remove_one', or "
            "take dp_svrg."
        )
    if accountant != "pld":
        raise ValueError(
            f"an exact anchor has no bound for accountant={accountant!r}; take 'pld', or dp_svrg."
        )
