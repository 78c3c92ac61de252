"""Attacks on dpjax's own guarantees: lower bounds on epsilon from many runs or one; NOT PRIVATE."""

from dpjax.accounting.one_run import OneRun, one_run
from dpjax.auditing import canaries, claims, counts, estimators, games
from dpjax.auditing.claims import Claim, GaussianClaim, SampledGaussianClaim
from dpjax.auditing.estimators import estimate
from dpjax.auditing.figure import plot_audits
from dpjax.auditing.games import Game, play
from dpjax.auditing.registry import AUDITS, Audit, Row, attack, audit, audit_many, plan

__all__ = [
    "AUDITS",
    "Audit",
    "Claim",
    "Game",
    "GaussianClaim",
    "OneRun",
    "Row",
    "SampledGaussianClaim",
    "attack",
    "audit",
    "audit_many",
    "canaries",
    "claims",
    "counts",
    "estimate",
    "estimators",
    "games",
    "one_run",
    "plan",
    "play",
    "plot_audits",
]
