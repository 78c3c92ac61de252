"""NOT PRIVATE: figures of audits, with measured errors over the claimed trade-off curve."""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpjax import plotting
from dpjax.auditing.registry import Audit


def plot_audits(audits: Sequence[Audit], path: str | os.PathLike) -> None:
    """Draws one panel per audit: measured errors, over the curve that none may lie below.

    Args:
      audits: at least one.
      path: file to write; its ending fixes the format.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if there is no audit, or the ending names no format.
    """
    if not audits:
        raise ValueError("plot_audits needs at least one audit.")
    columns = math.ceil(math.sqrt(len(audits)))
    rows = math.ceil(len(audits) / columns)
    measures = {
        f"epsilon at delta = {audit.delta:g}"
        if audit.measure == "epsilon"
        else "delta at epsilon = 0"
        for audit in audits
    }
    title = f"{' and '.join(sorted(measures))}; both axes logarithmic"
    with plotting.panels(path, rows, columns, title, size=(4.2, 3.6), legend="inside") as grid:
        for axes, audit in zip(grid.flat, audits, strict=False):
            _panel(axes, audit)


def _panel(axes: Any, audit: Audit) -> None:
    order = audit.tradeoff[:, 0].argsort()
    positive, negative, claimed = audit.tradeoff[order].T
    # A logarithmic axis has no place for a rate of 0.
    seen = (positive > 0) & (negative > 0)
    # Rates of a few runs are too noisy to draw.
    floor = 10 / audit.runs
    drawn = (claimed > 0) & (positive > 0)
    plotting.band(
        axes,
        positive[drawn],
        claimed[drawn],
        (np.full(drawn.sum(), floor), claimed[drawn]),
        plotting.BLUE,
        label="claimed: none below",
    )
    axes.plot(
        positive[seen],
        negative[seen],
        **plotting.mark(plotting.ORANGE, "o", 3),
        linestyle="none",
        label="measured",
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(floor, 1.3),
        ylim=(floor, 1.3),
        xlabel="false positive rate",
        ylabel="false negative rate",
        title=f"{audit.name}\n{audit.measure}: "
        f"claimed {audit.claimed:.3g}, audited {audit.audited:.3g}: {audit.outcome}",
    )
