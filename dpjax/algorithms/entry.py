"""``Entry``: one row of the registry, from which everything that lists algorithms is derived."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from dpjax._typing import Relation
from dpjax.algorithms.base import Algorithm


class Power(NamedTuple):
    """What an attack proves.

    Attributes:
      runs: total number of runs.
      least: least ratio of audited to claimed epsilon at that number; below it the attack has lost
        its power and proves nothing.
    """

    runs: int
    least: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """The attack on a full run, as data; ``dpjax.auditing`` carries it out.

    The attacker chooses the loss, under which one record of ``data_size`` contributes the full clip
    norm and the others nothing.

    Args:
      loss: name of a function of ``dpjax.auditing.canaries`` without arguments.
      settings: further arguments of the factory.
      data_size: number of records n.
      dimension: number of parameters p.
      epsilon: of the budget.
      delta: of the budget.
      relation: of the budget and of the data sets.
      full: power of a full audit.
      quick: power of a quick audit, for CI.
      kills: name of a planted bug that an audit of few runs refutes, see ``tests/mutants.py``.
      max_records: of a person, where the canary is one and ``data_size`` counts persons.

    Privacy: settings of a synthetic attack; no data.
    """

    loss: str = "winding"
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    data_size: int = 2
    dimension: int = 2
    epsilon: float = 4.0
    delta: float = 1e-5
    relation: Relation = "zero_out"
    full: Power = Power(100_000, 0.90)
    quick: Power = Power(20_000, 0.75)
    kills: str = "noise x0.5"
    max_records: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """A small configuration, for the contract suite and for whoever wants to try the algorithm.

    Args:
      objective: name of an objective that the algorithm takes, of ``dpjax.objectives.OBJECTIVES``.
      required: arguments without a default.
      settings: arguments for 64 records, 4 features and 6 steps.
      plain: arguments that a loss without constants needs, such as its clip norm.
      refuses: (relation, accountant) under which the factory has no noise -> words of its error.
      single_pass: whether each record is read once, in order.
      delta_only: whether the guarantee is at epsilon 0, with all of delta spent.
    """

    objective: str = "logistic-nonconvex"
    required: dict[str, Any] = dataclasses.field(default_factory=dict)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    plain: dict[str, Any] = dataclasses.field(default_factory=dict)
    refuses: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    single_pass: bool = False
    delta_only: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One algorithm, as everything that lists algorithms reads it.

    The command line, the contract suite, audits, mutants' tables and the tables of the docs are
    derived from it.

    Args:
      name: on the command line, in the contract suite, and of its audit.
      factory: ``(objective, budget, *, data_size, dimension, ...) -> Algorithm``.
      asks: what a step asks of the data, in one sentence without a capital or a full stop.
      example: a small configuration.
      scenario: the attack on a full run.
      grid: arguments and the values that a private search draws them from by default, for rows of
        norm 1; empty where no default is sensible.
      one_release: whether it releases once and takes no planned steps, so that neither the command
        line nor the contract suite can run it.
    """

    name: str
    factory: Callable[..., Algorithm]
    asks: str
    example: Example
    scenario: Scenario
    grid: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    one_release: bool = False


def factories(entries: tuple[Entry, ...], one_release: bool = False) -> dict[str, Any]:
    """Returns name -> factory of the entries, of those that release once or of all others."""
    return {entry.name: entry.factory for entry in entries if entry.one_release == one_release}
