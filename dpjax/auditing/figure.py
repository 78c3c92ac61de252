"""NOT PRIVATE: the picture of an audit, measured errors over the claimed trade-off curve."""

import math
import os
from collections.abc import Sequence

from dpjax import plotting
from dpjax.auditing.registry import Audit


def plot_audits(audits: Sequence[Audit], path: str | os.PathLike) -> None:
    """Draws one panel an audit: what attacks achieve, over the curve no attack may cross.

    Args:
      audits: at least one.
      path: file to write; its ending fixes the format.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if there is no audit, or the ending names no format.

    Privacy: NOT PRIVATE; the records are made up.
    """
    plotting.check_path(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not audits:
        raise ValueError("plot_audits needs at least one audit.")
    columns = math.ceil(math.sqrt(len(audits)))
    rows = math.ceil(len(audits) / columns)
    figure = Figure(figsize=(4.2 * columns, 3.6 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, found in zip(panels, audits, strict=False):
        order = found.tradeoff[:, 0].argsort()
        positive, negative, claimed = found.tradeoff[order].T
        seen = (positive > 0) & (negative > 0)
        floor = 10 / found.runs
        drawn = (claimed > 0) & (positive > 0)
        axes.fill_between(
            positive[drawn], floor, claimed[drawn], color=plotting.BLUE, alpha=0.12, linewidth=0
        )
        axes.plot(positive[drawn], claimed[drawn], color=plotting.BLUE, label="claimed: none below")
        axes.plot(
            positive[seen],
            negative[seen],
            marker="o",
            markersize=3,
            linestyle="none",
            color=plotting.ORANGE,
            label="measured",
        )
        axes.set(
            xscale="log",
            yscale="log",
            xlim=(floor, 1.3),
            ylim=(floor, 1.3),
            xlabel="false positive rate",
            ylabel="false negative rate",
            title=f"{found.name}\n{found.measure}: "
            f"claimed {found.claimed:.3g}, audited {found.audited:.3g}",
        )
        axes.legend(fontsize="small", loc="lower left", framealpha=0.8)
    measures = {
        f"epsilon at delta = {one.delta:g}" if one.measure == "epsilon" else "delta at epsilon = 0"
        for one in audits
    }
    for axes in panels[len(audits) :]:
        axes.set_axis_off()
    figure.suptitle(f"{' and '.join(sorted(measures))}; both axes logarithmic")
    figure.savefig(path, dpi=150)
