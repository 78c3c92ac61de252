"""The facts of a privacy guarantee; its text is ``guarantee.txt`` beside this file."""

import importlib.metadata
import math
import pathlib
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jinja2

from dpjax.accounting import Event, Release, epsilon
from dpjax.accounting.noise_draws import charge
from dpjax.algorithms import Algorithm
from dpjax.datasets.labels import Classes, listed
from dpjax.display import cards
from dpjax.display.cards import ceil
from dpjax.objectives.units import UnitLoss
from dpjax.results.remarks import remarks

_CLAIM = "-differentially private."
COLUMNS = 100
_VERSIONS = ("dpjax", "dp-accounting", "jax")


class Guarantee(str):
    """A guarantee in words: a ``str`` that prints with its line breaks, and as a box in a notebook.

    Privacy: holds public numbers only.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        warning, text = split_warning(self)
        return cards.text_to_html("Guarantee", text, warning)


def split_warning(text: str) -> tuple[str, str]:
    """Returns why a guarantee may not be relied on, or nothing, and what it claims."""
    lines = text.splitlines(keepends=True)
    # Without a claim all of it is text, and nothing a warning.
    at = next((i for i, line in enumerate(lines) if _CLAIM in line), 0)
    return "".join(lines[:at]).strip(), "".join(lines[at:])


def statement(
    algorithm: Algorithm,
    unit: str,
    reproducible: bool = False,
    classes: Classes | None = None,
    label_bounds: tuple[float, float] | None = None,
    part: str | None = None,
    audit: str = "",
) -> Guarantee:
    """Returns what the training guarantees, what it rests on, and what it does not cover.

    ``classes`` and ``label_bounds`` are of the label as it was declared; ``audit`` is what the
    canaries of the run say.

    Privacy: holds public numbers only.
    """
    queries, counted = algorithm.queries, algorithm.objective.labels
    grouped = isinstance(algorithm.objective.loss, UnitLoss)
    # The objective knows the scaled label alone.
    if label_bounds is not None:
        counted = f"numbers from {label_bounds[0]:.15g} to {label_bounds[1]:.15g}"
    if counted is not None and classes:
        counted = listed(list(map(repr, classes)), classes)
    if (weights := getattr(algorithm.objective.label_kind, "said", "")) and counted is not None:
        counted = counted.removesuffix(weights) + weights
    exact_rows = all(query.in_any_row for query in queries)
    event, accountant = algorithm.event, algorithm.accountant
    delta, drawing = float(algorithm.declared.delta), 0.0
    spent = epsilon(event, delta, algorithm.relation, accountant)
    if event.noise_draws:
        exact = epsilon(event.with_exact_noise, delta, algorithm.relation, accountant)
        # Each is computed with an error of its own: their difference may fall below the charge.
        drawing = max(spent - exact, charge(event.noise_draws).epsilon)
    facts = _facts(event, queries[0].data_size) | {
        "title": algorithm.title[:1].upper() + algorithm.title[1:],
        "epsilon": spent,
        "delta": delta,
        "drawing_charge": drawing,
        "accountant": accountant,
        "remarks": remarks(algorithm),
        # In quotes: mostly the name of a column, of any language.
        "unit": repr(unit) if grouped else unit,
        "grouped": grouped,
        "reproducible": reproducible,
        "labels": counted,
        "part": part,
        "audit": audit,
        "in_any_row": exact_rows,
        "charged_rows": list({query.charged_rows: query.name for query in queries}.items()),
        # Of more records a batch has more slots, and may round otherwise without the added one.
        "slots": not exact_rows and any(not query.sampler.reads_all for query in queries),
    }
    return Guarantee("\n".join(map(_filled, _lines(_TEMPLATE.render(facts)))))


def describe(release: Release) -> str:
    """Returns what the guarantee's list says of a release, one line for each of its items.

    >>> describe(Release("gradient", 10, noise_multiplier=5.0, sensitivity=0.1))
    'gradient: 10 times; sensitivity 0.1 (enforced by clipping); noise multiplier 5'
    """
    lines = _lines(_TEMPLATE.render(releases=[release]))
    return "\n".join(line.removeprefix("- ") for line in lines)


def _facts(event: Event, data_size: int) -> dict[str, Any]:
    """What is read off the releases of an event."""
    releases, law = event.releases, _law(event)
    answers = [answer for release in releases for answer in _answers(release)]
    growing = [release for release in releases if release.growing_charge]
    constant = [release for release in releases if release.constant_charge]
    return {
        "n": data_size,
        "relation": event.relation,
        "releases": releases,
        # A search lists its first training, the one that it releases, and charges all.
        "answers": [answer for release in releases for answer in _answers(release, 1)],
        "mechanisms": list(dict.fromkeys(answer.mechanism for answer in answers)),
        "law": law,
        "exact": all(answer.is_gaussian for answer in answers),
        "mu": event.gaussian_mu if event.is_gaussian else None,
        "noise_draws": event.noise_draws,
        "ends_early": any(release.ends_early for release in releases),
        "growing": math.fsum(release.growing_charge for release in growing),
        "constant": math.fsum(release.constant_charge for release in constant),
        "failing": list(_failing(growing)),
        "failing_constantly": list(_failing(constant)),
        # Where no loss is composed, delta is charged what it is at epsilon 0, whatever the epsilon.
        "lossless": all(release.is_lossless for release in releases),
        "versions": {name: importlib.metadata.version(name) for name in _VERSIONS},
    }


def _law(event: Event) -> str:
    """How losses add up: composed, in a closed form by name, or as a class from elsewhere says."""
    if event.is_gaussian:
        return "gaussian"
    lossless = all(release.is_lossless for release in event.releases)
    for release in event.releases:
        # A class that overrides it adds up losses by a law of its own, and gives its name.
        if lossless or type(release).whole_epsilon is not Release.whole_epsilon:
            return release.mechanism
    return "composed"


def _answers(release: Release, trainings: int | None = None) -> Iterator[Release]:
    """Yields a release, or those that it is made of, of a search those of its first trainings."""
    for parts in getattr(release, "trainings", (release.parts(),))[:trainings]:
        for part in parts:
            # A release that is made of no others is its own only part.
            yield from (part,) if part is release else _answers(part)


def _failing(releases: Iterable[Release]) -> Iterator[Release]:
    return (part for each in releases for part in _answers(each) if part.failure_probability)


def _lines(text: str) -> list[str]:
    """Returns paragraphs, which blank lines part, and items, each on a line."""
    blocks = re.split(r"\n\s*\n|\n(?=- )", text.strip())
    return [re.sub(r"\s*\n\s*", " ", block) for block in blocks]


def _filled(line: str) -> str:
    """Returns a paragraph or an item in lines of 100 columns."""
    if _CLAIM in line:  # what reads a guarantee finds its claim on one line
        return line
    first, next_ = ("  - ", "    ") if line.startswith("- ") else ("", "")
    return textwrap.fill(
        line.removeprefix("- ") if first else line,
        COLUMNS,
        initial_indent=first,
        subsequent_indent=next_,
        # A hyphen may be a part of a name or an option, to be found and copied whole.
        break_on_hyphens=False,
    )


def _printable(value: Any) -> Any:
    """Returns what a page prints: another character may change how the rest is shown."""
    return cards.printable(value) if type(value) is str else value  # no markup, which is escaped


def _one_line(value: Any) -> Any:
    """Returns what a text prints, whose names cannot end a line or a paragraph."""
    return re.sub(r"\s", " ", cards.printable(value)) if isinstance(value, str) else value


def _each(releases: Iterable[Release], words: Callable[[Release], str]) -> list[str]:
    return list(dict.fromkeys(_one_line(words(release)) for release in releases))


def _of_kind(words: dict[str, str], kind: str) -> str:
    # No default: words of a proof must not be printed of a quantity that nobody has described.
    if kind not in words:
        raise ValueError(f"no words for a quantity of kind {kind!r}: state a description instead.")
    return words[kind]


def open_template(path: pathlib.Path, **filters: Callable) -> jinja2.Template:
    """Returns a template in which a name without a value is an error; of a page it escapes."""
    page = path.suffix == ".html"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(path.parent),
        undefined=jinja2.StrictUndefined,
        finalize=_printable if page else _one_line,
        autoescape=page,  # in text nothing can be markup
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shared = {"ceil": ceil, "floor": cards.floor, "repr": repr, "thousands": "{:,}".format}
    environment.filters |= {**shared, "digits": lambda value, n: f"{value:.{n}g}", **filters}
    return environment.get_template(path.name)


_TEMPLATE = open_template(
    pathlib.Path(__file__).with_name("guarantee.txt"),
    label=lambda name: name.replace("_", " "),
    each=_each,
    of_kind=_of_kind,
    dict=dict,
    **{"class": lambda value: type(value).__name__},
)
