"""Budgets, events and noise scales: everything about epsilon, on the host."""

from dpjax.accounting.ball import (
    BallRelease,
    PoissonBallRelease,
    SubsetBallRelease,
    ball_composition,
    ball_delta,
    ball_radius,
    ball_share,
)
from dpjax.accounting.best_of import NumberOfTrials
from dpjax.accounting.budget import RELATIONS, PrivacyBudget, records_moved, remarks
from dpjax.accounting.calibrate import calibrate, check_spent, gaussian_multiplier, round_up
from dpjax.accounting.events import ACCOUNTANTS, Event, compose, epsilon, renyi
from dpjax.accounting.hash_chain import LedgerError
from dpjax.accounting.ledger import Ledger
from dpjax.accounting.ledger_entries import Entry
from dpjax.accounting.other_releases import (
    PerturbationRelease,
    SelectionRelease,
    gumbel_multiplier,
    gumbel_scale,
    perturbed_delta,
)
from dpjax.accounting.release import Release
from dpjax.accounting.sampled_releases import (
    PoissonRelease,
    SinglePassRelease,
    SubsetRelease,
    parallel,
)
from dpjax.accounting.search import SearchRelease

__all__ = [
    "ACCOUNTANTS",
    "RELATIONS",
    "BallRelease",
    "Entry",
    "Event",
    "Ledger",
    "LedgerError",
    "NumberOfTrials",
    "PerturbationRelease",
    "PoissonBallRelease",
    "PoissonRelease",
    "PrivacyBudget",
    "Release",
    "SearchRelease",
    "SelectionRelease",
    "SinglePassRelease",
    "SubsetBallRelease",
    "SubsetRelease",
    "ball_composition",
    "ball_delta",
    "ball_radius",
    "ball_share",
    "calibrate",
    "check_spent",
    "compose",
    "epsilon",
    "gaussian_multiplier",
    "gumbel_multiplier",
    "gumbel_scale",
    "parallel",
    "perturbed_delta",
    "records_moved",
    "remarks",
    "renyi",
    "round_up",
]
