"""DP-SVRG and DP-SVRG++ as printed: an exact gradient at the anchor inside every noisy step."""

import dataclasses

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.accounting import Event, calibrate, check_spent
from dpjax.algorithms import base
from dpjax.algorithms.common import Single
from dpjax.algorithms.svrg import Epochs, State
from dpjax.algorithms.svrg_theory import Asked
from dpjax.oracles import AnchoredQuery, Evaluations, poisson_sampler


@pytree_dataclass
class PrintedVarianceReduced(Single, Epochs):
    """Configuration of the printed form; made with ``anchor="exact"``.

    The exact gradient at the anchor is secret state of the driver: it enters every step before the
    noise, and is in no state, history, solution or checkpoint.
    """

    query: AnchoredQuery
    step_size: Array | float
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
    def evaluations(self) -> Evaluations:
        """Two gradients of each record of a batch, and one of every record at each anchor."""
        steps = self.query.evaluations(int(self.steps))
        whole = dataclasses.replace(self.query, sampler=None).evaluations(self.epochs)
        # Of the two gradients that an answer takes the anchor takes one.
        return Evaluations(*(of + all_of // 2 for of, all_of in zip(steps, whole, strict=True)))

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
    asked: Asked,
    schedule: tuple[int, int],
    *,
    step_size: float,
    doubling: bool,
    max_steps: int,
) -> PrintedVarianceReduced:
    """Returns the printed form, calibrated to the budget.

    Args:
      problem: checked, and of a form that has an accounting.
      asked: what the query is made of.
      schedule: steps of the first epoch (SVRG++: half as many), and all steps.
      step_size: eta.
      doubling: whether it is algorithm 2.
      max_steps: length of the history.

    Raises:
      ValueError: without batches, or if no noise reaches the budget.
    """
    budget, n = problem.budget, problem.data_size
    epoch_length, steps = schedule
    sampler = poisson_sampler(asked.batch_size or n, n, budget, steps, asked.capacity)
    if sampler is None:
        raise ValueError(
            f"anchor='exact' is for batches; batch_size={n} is all records, where the "
            "gradient at the anchor cancels. Take dp_gradient_descent, or a smaller batch_size."
        )

    def query(multiplier: float) -> AnchoredQuery:
        common = (problem.objective, n, budget.relation, sampler)
        return AnchoredQuery(multiplier, asked.clip_norm, *common)

    def event(multiplier: float) -> Event:
        return query(multiplier).event(steps)

    (found,) = base.fast_noise(
        (query(calibrate(event, budget, problem.accountant)),), asked.unsafe_fast_noise
    )
    made = PrintedVarianceReduced(
        query=found,
        step_size=base.positive_leaf("step_size", step_size),
        epoch_length=epoch_length,
        steps=steps,
        declared=base.Declared(budget.epsilon, budget.delta),
        doubling=doubling,
        max_steps=max_steps,
        dimension=problem.dimension,
        accountant=problem.accountant,
    )
    base.check_noise(made.event)
    check_spent(made.event, budget, problem.accountant, "use 'pld'.")
    return made
