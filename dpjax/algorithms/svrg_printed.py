"""DP-SVRG and DP-SVRG++ as printed: an exact gradient at the anchor inside every noisy step."""

import dataclasses
from typing import NamedTuple

import jax

from dpjax._typing import Array, Params, static
from dpjax.accounting import Event, calibrate, check_spent
from dpjax.algorithms import base
from dpjax.algorithms.svrg import Epochs, State
from dpjax.oracles import AnchoredQuery, Evaluations, Query, poisson_sampler


class Schedule(NamedTuple):
    """How long to run: ``epochs`` that begin, of ``epoch_length`` steps or 2^s times as many."""

    epochs: int
    epoch_length: int
    steps: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PrintedVarianceReduced(Epochs):
    """Configuration of the printed form; made with ``anchor="exact"``.

    The exact gradient at the anchor is secret state of the driver: it enters every step before the
    noise, and is in no state, history, solution or checkpoint.
    """

    query: AnchoredQuery
    step_size: Array | float
    epochs: Array | int
    epoch_length: Array | int
    steps: Array | int
    declared: base.Declared
    doubling: bool = static()
    max_steps: int = static()
    dimension: int = static()
    accountant: str = static()

    @property
    def title(self) -> str:
        """Name for people."""
        return f"{'DP-SVRG++' if self.doubling else 'DP-SVRG'} (exact anchor, secret)"

    @property
    def queries(self) -> tuple[Query, ...]:
        """One query, which adds noise to the whole."""
        return (self.query,)

    @property
    def event(self) -> Event:
        """``steps`` mixtures of Gaussians."""
        return self.query.event(int(self.steps))

    @property
    def evaluations(self) -> Evaluations:
        """Those of the batches, and of the exact gradient of all records once an epoch."""
        batches = super().evaluations
        anchors = self.query.data_size * int(self.epochs)
        return Evaluations(batches.declared + anchors, batches.padded + anchors)

    def remembered(self, state: State) -> tuple[Params, Array]:
        """Returns the anchor of the next step, and whether that step renews it."""
        entered, renew = self._entered(state)
        return entered.anchor, renew

    def _estimate(
        self, key: Array, state: State, renew: Array, ask: base.Ask
    ) -> tuple[Params, Params]:
        del renew
        answer = ask(key, self.query.name, state.params, anchor=state.anchor)
        # Nothing is released at the anchor.
        return state.gradient, answer


def printed(
    problem: base.Problem,
    schedule: Schedule,
    *,
    clip_norm: float,
    batch_size: int,
    capacity: int | None,
    step_size: float,
    doubling: bool,
    longest: int,
    unsafe_fast_noise: bool,
) -> PrintedVarianceReduced:
    """Returns the printed form, calibrated to the budget.

    Args:
      problem: checked.
      schedule: of the epochs.
      clip_norm: C, the bound on one record's gradient.
      batch_size: expected size of a Poisson batch, below n.
      capacity: as in ``sampling.poisson``.
      step_size: eta.
      doubling: whether it is algorithm 2.
      longest: least length of the history.
      unsafe_fast_noise: see ``mechanisms.perturb``.

    Raises:
      ValueError: where the form has no accounting, or no noise reaches the budget.
    """
    budget, steps = problem.budget, schedule.steps
    check_printed(problem.accountant, budget.relation)
    sampler = poisson_sampler(batch_size, problem.data_size, budget, steps, capacity)
    if sampler is None:
        raise ValueError(
            f"anchor='exact' is for batches; batch_size={batch_size} is all records, where the "
            "gradient at the anchor cancels. Take dp_gradient_descent, or a smaller batch_size."
        )

    def query(multiplier: float) -> AnchoredQuery:
        return AnchoredQuery(
            multiplier,
            clip_norm,
            problem.objective,
            problem.data_size,
            budget.relation,
            sampler,
            unsafe_fast_noise,
        )

    def make_event(multiplier: float) -> Event:
        return query(multiplier).event(steps)

    asked = query(calibrate(make_event, budget, problem.accountant))
    (asked,) = base.fast_noise((asked,), unsafe_fast_noise)
    base.check_noise(asked.event(steps))
    check_spent(asked.event(steps), budget, problem.accountant, "use 'pld'.")
    return PrintedVarianceReduced(
        query=asked,
        step_size=base.positive_leaf("step_size", step_size),
        epochs=schedule.epochs,
        epoch_length=schedule.epoch_length,
        steps=steps,
        declared=base.Declared(budget.epsilon, budget.delta),
        doubling=doubling,
        max_steps=max(steps, longest),
        dimension=problem.dimension,
        accountant=problem.accountant,
    )


def check_printed(accountant: str, relation: str) -> None:
    """Raises where the printed form has no proved accounting.

    Raises:
      ValueError: for ``accountant`` other than ``"pld"``, or ``replace_one``.

    >>> check_printed("pld", "zero_out")
    """
    if accountant == "paper":
        raise ValueError(
            "accountant='paper' is refused with anchor='exact': the paper's noise is for "
            "relation='replace_one', for which this form has no proved accounting, and its literal "
            "constant is no privacy (at batch 1 a delta of 0.86 is left). Take accountant='pld' "
            "with relation='zero_out', or anchor='noisy'."
        )
    if relation == "replace_one":
        raise ValueError(
            "anchor='exact' has no proved accounting under relation='replace_one': the pair of "
            "both records' norms is not the worst one. Declare 'zero_out' or 'add_or_remove_one', "
            "or take anchor='noisy'."
        )
    if accountant != "pld":
        raise ValueError(
            f"anchor='exact' has no bound for accountant={accountant!r}; take 'pld', or "
            "anchor='noisy'."
        )
