"""Attacks on dpjax's own guarantees: lower bounds on epsilon from many runs; NOT PRIVATE."""

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
    "plan",
    "play",
    "plot_audits",
]
