"""The page of a first look at a table: a table of numbers, and a picture of each column."""

from collections.abc import Iterator

from dpjax import plotting
from dpjax.reporting import frame, pictures
from dpjax.statistics import Description, Summary
from dpjax.statistics.bins import QUANTILES

_HOLD = (
    "All numbers hold noise; ranges in parentheses hold what they would be without it in 95 of 100 "
    "cases. Numbers beyond declared bounds are counted in the outermost bins."
)


def sections_of(look: Description) -> list[frame.Section]:
    """Returns the claim, what there is, and the guarantee; released and public values only."""
    text = str(look.solution.guarantee())
    short = frame.Section("In short", [text.partition("\n")[0], _HOLD])
    return [short, *_sections(look), frame.Section("The guarantee in full", code=[text])]


def _sections(look: Description) -> Iterator[frame.Section]:
    said = [f"{look.records.words()} records count: training would drop the others."]
    if look.persons is not None:
        said.append(f"{look.persons.value:,.0f} of {look.solution.unit} have one; below, each "
                    "counts as one, by the mean of its records.")  # fmt: skip
    said.append(f"Noise on each count: standard deviation {look.stddev:.3g}.")
    numbers = [each for each in look.columns if each.mean]
    rows = [
        [each.bins.name, f"{each.missing.value:.1%}"]
        + [e.words(each.bins.show) for e in (each.mean, *each.quantiles.values()) if e]
        for each in numbers
    ]
    head = ["column", "missing", "mean", *(f"{level:.0%}" for level in QUANTILES)]
    shown = plotting.is_available()
    drawn = [_picture(each, look.stddev) for each in look.columns] if shown else []
    yield frame.Section("What there is", said, head, rows, drawn)
    if look.correlation:
        pairs = [(pair, e.words("{:.2f}".format)) for pair, e in look.correlation.items()]
        yield frame.Section("Correlations", (), ("columns", "correlation"), pairs)


def _picture(column: Summary, stddev: float) -> frame.Picture:
    bins = column.bins
    names = [*map(str, bins.levels)] or [bins.show(edge) for edge in bins.edges]
    svg = pictures.histogram(column.counts[1:], names, stddev)
    return frame.Picture(bins.name, f"{column.missing.value:.1%} missing or not declared", svg)
