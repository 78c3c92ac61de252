"""State of Stochastic Spider, and the information it releases at each step."""

from typing import Any, NamedTuple

from dpjax._typing import Array, Params
from dpjax.oracles import Scores


class State(NamedTuple):
    """What the next step needs; all of it released."""

    params: Params
    previous: Params
    """Where the estimate is known: the iterate before."""
    estimate: Params
    """Sum of the noisy increments of this segment: the gradient there, without the regularizer."""
    gradient_norm: Array
    """Norm of the last step's direction before any kick; infinite before the first."""
    drift: Array
    """M times the way gone since the estimate was renewed; infinite before the first."""
    used: Array
    """Records read; the places before this one in their order."""
    refresh: Array
    """Whether the next question is for the gradient itself."""
    size: Array
    """How many records it reads: one number, whoever needs it."""
    segment: Array
    leaf: Array
    """Place of the last increment in its segment."""
    taken: Array
    escape: Any
    """What the way out of saddles remembers."""
    points: Params
    """Candidates for the output, stacked: the last iterate of each span of records."""
    place: Array
    """Of the newest candidate."""
    since: Array
    """Records that were read before its span."""
    scores: Scores
    """What was released of the candidates when the steps were over."""
    chosen: Array


class Info(NamedTuple):
    """What a person watches; all of it released."""

    gradient_norm: Array
    """Norm of the estimated gradient, regularizer included, before any kick."""
    step_norm: Array
    """Length of the step taken."""
    batch: Array
    """Records that this step read."""
    used: Array
    """Records read so far."""
    drift: Array
    """M times the way gone since the estimate was renewed, before this step."""
    refreshed: Array
    """1 where the gradient itself was asked, 0 where how it changed."""
    kicked: Array
    """1 where noise was added to leave a saddle."""


class Kicks(NamedTuple):
    """Steps until another kick is allowed."""

    frozen: Array
