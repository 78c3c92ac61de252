"""Figures of what a training released; matplotlib comes with the ``plot`` extra."""

import importlib.util
import os
from typing import Any

import numpy as np

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"


def require() -> None:
    """Raises ImportError, saying what to install, unless pictures can be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("pictures need matplotlib: pip install 'dpjax[plot]'.")


def check_path(path: str | os.PathLike) -> None:
    """Raises, before anything is spent, unless a picture can be written under this name.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the ending names no format.
    """
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    ending = os.path.splitext(path)[1].lstrip(".")
    formats = FigureCanvasAgg.get_supported_filetypes()
    if ending not in formats:
        raise ValueError(f"{path} must end in one of: {', '.join(sorted(formats))}.")


def plot_solution(solution: Any, path: str | os.PathLike, title: str) -> None:
    """Draws the released history of one training, or of a batch of them, with its certificate.

    One panel for the norm of the noisy gradient and the certified bound on the true one, one for
    the length of each step and its radius, one for the multiplier, where there are such.

    Args:
      solution: a ``Solution``; under ``vmap`` the median and the middle 80 % are drawn.
      path: file to write; its ending fixes the format.
      title: printed above.

    Raises:
      ImportError: if matplotlib is not installed.

    Privacy: draws released values only.
    """
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps = int(np.max(np.asarray(solution.steps)))
    history = {
        name: np.atleast_2d(np.asarray(values))[:, :steps]
        for name, values in solution.history._asdict().items()
    }
    figure = Figure(figsize=(4.5 * (2 + ("multiplier" in history)), 4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2 + ("multiplier" in history))
    _band(panels[0], history["gradient_norm"], BLUE, "noisy gradient norm")
    _certificate(panels[0], solution.certificate, steps)
    panels[0].set(ylabel="gradient norm", yscale="log", title="Stationarity")
    _band(panels[1], history["step_norm"], GREEN, "step length")
    if "radius" in history:
        _band(panels[1], history["radius"], PINK, "trust radius", linestyle="--")
    panels[1].set(ylabel="length (parameter units)", yscale="log", title="Steps")
    if "multiplier" in history:
        # The multiplier is 0 inside the radius, which a logarithm cannot show.
        _band(panels[2], history["multiplier"], ORANGE, "multiplier")
        panels[2].set(
            ylabel="dual variable (curvature units)",
            ylim=(0, None),
            title="Multiplier, 0 inside the radius",
        )
    for axes in panels:
        axes.set(xlabel="step")
        axes.legend(fontsize="small", framealpha=0.8)
    runs = len(history["gradient_norm"])
    figure.suptitle(title + (f"\nmedian and middle 80 % of {runs} runs" if runs > 1 else ""))
    figure.savefig(path, dpi=150)


def _band(axes: Any, values: np.ndarray, color: str, label: str, linestyle: str = "-") -> None:
    step = np.arange(1, values.shape[1] + 1)
    if len(values) > 1:
        low, high = np.nanquantile(values, [0.1, 0.9], axis=0)
        axes.fill_between(step, low, high, color=color, alpha=0.2, linewidth=0)
    axes.plot(step, np.nanmedian(values, axis=0), color=color, label=label, linestyle=linestyle)


def _certificate(axes: Any, certificate: Any, steps: int) -> None:
    if certificate is None:
        return
    upper = float(np.median(np.asarray(certificate.gradient_norm_upper)))
    beta = float(np.min(np.asarray(certificate.beta)))
    where = steps if certificate.iterate == "last_query" else steps + 1
    axes.plot(
        [where],
        [upper],
        marker="v",
        color=ORANGE,
        linestyle="none",
        label=f"true gradient at most this\n(probability {1 - beta:.0%}, {certificate.scope})",
    )
