"""The papers' verdicts, tables and pictures from planted numbers."""

import numpy as np
import pytest
from scipy.stats import norm

import dpjax
from dpjax import experiments
from dpjax.experiments import Results, Row, claims, figures, page, results
from dpjax.experiments.papers import dpagem, erm, perturbed, spider

PAPERS = experiments.PAPERS
GD, TR, STR = (
    "DP-GD, published noise",
    "DP-TR, published noise",
    "DP-STR, published noise, corrected",
)
_NAN = float("nan")


def figure_of(paper, name, index=0):
    """A figure, and one of its problems."""
    figure = PAPERS[paper].figures[name]
    return figure, figure.problems[index]


def rows(problem, method, epsilon, n=1_000, settings="", **values):
    """Rows of a method: a list is of seeds, a number belongs to all of them."""
    made = []
    for metric, value in values.items():
        seeds = enumerate(value) if isinstance(value, list) else [(_NAN, value)]
        place = ("e", problem.name, n, 4, method, settings, epsilon)
        made += [Row(*place, float(seed), _NAN, metric, v) for seed, v in seeds]
    return made


def reference(problem, n=1_000, **values):
    return [
        row._replace(metric=f"exact_{row.metric}") for row in rows(problem, "", _NAN, n, **values)
    ]


def words(figure, problems, made):
    return [one.word for claim in figure.claims for one in claim(Results(made), problems)]


# The trust-region paper.


def panels(gaps, seconds, problem):
    made = reference(problem, optimum=0.5, searched=0.5)
    for label, gap in gaps.items():
        for epsilon in (0.5, 1.0):
            made += rows(problem, label, epsilon, exact_gap=[gap, gap],
                         exact_gradient_norm=[gap, gap])  # fmt: skip
    for label, spent in zip(gaps, seconds, strict=True):
        made.append(rows(problem, label, 1.0, seconds=spent)[0]._replace(step=3.0))
    return made


@pytest.mark.parametrize(
    ("gaps", "seconds", "held"),
    [
        ((0.2, 0.1, 0.3), (2.0, 3.0, 1.0), [1] * 5),
        ((0.1, 0.2, 0.3), (2.0, 1.0, 3.0), [0, 0, 1, 1, 0]),
        ((0.2, 0.1, 0.05), (1.0, 2.0, 3.0), [1, 1, 0, 0, 0]),
    ],
)
def test_verdicts_of_the_trust_region_paper_turn_with_the_numbers(gaps, seconds, held):
    figure, problem = figure_of("trust-region", "fig6")
    made = panels(dict(zip((GD, TR, STR), gaps, strict=True)), seconds, problem)
    expected = ["agrees" if one else "does not agree" for one in held]
    assert words(figure, [problem], made) == expected
    measured = figure.claims[0](Results(made), [problem])[0].measured
    assert claims.number(gaps[1]) in measured


@pytest.mark.parametrize(("known", "word"), [(0.50001, " agrees"), (0.6, "NOT agree")])
def test_the_page_says_whether_the_optimum_is_the_known_one(known, word):
    problem = experiments.Problem("made", "logistic", reference="descents", known=known)
    found = Results(reference(problem, optimum=0.5, searched=0.5))
    assert word in page.about_reference(problem, found)


def test_accuracy_is_held_against_the_majority_class_and_drawn_beside_it(tmp_path, pictures):
    figure, problem = figure_of("trust-region", "fig2")
    made = reference(problem, accuracy_of_the_optimum=0.9, share_of_the_larger_class=0.8)
    for label, share in {GD: 0.895, TR: 0.895, STR: 0.7}.items():
        for epsilon in (0.5, 1.0):
            made += rows(problem, label, epsilon, exact_accuracy=[share, share])
    assert words(figure, [problem], made) == ["agrees", "agrees in 2 of 3", "does not agree"]
    figures.draw(figure.picture, (problem,), Results(made), tmp_path / "fig2.png")
    (axes,) = (axes for axes in pictures["fig2"].axes if axes.has_data())
    lines = {line.get_label(): line.get_ydata()[-1] for line in axes.lines}
    known = {"non-private optimum": 0.9, "majority class": 0.8}
    assert lines == pytest.approx({GD: 0.895, TR: 0.895, STR: 0.7} | known)


def test_the_legend_lists_curves_as_they_lie(tmp_path, pictures):
    figure, problem = figure_of("trust-region", "fig6")
    made = panels({TR: 0.01, GD: 0.1, STR: 0.05}, (1, 1, 1), problem)
    figures.draw(figure.picture, (problem,), Results(made), tmp_path / "fig6.png")
    (legend,) = pictures["fig6"].legends
    assert [text.get_text() for text in legend.get_texts()] == [GD, STR, TR]


# The convex paper.


def risks(problem, means, costs, epsilons=(0.5, 1.0)):
    """Each method has this excess risk at epsilon 1, falling as its square, and half was tried."""
    made = reference(problem, optimum=0.5, slack=1e-9)
    for (label, gap), cost in zip(means.items(), costs, strict=True):
        for e in epsilons:
            made += rows(problem, label, e, exact_gap=[gap / e**2] * 2, gradients=cost,
                         gradients_computed=2 * cost, settings="steps 3")  # fmt: skip
            tried = rows(problem, label, e, exact_gap=gap, gradients=cost / 2, settings="steps 1")
            made += [row._replace(seed=-1.0) for row in tried]
    return made


@pytest.mark.parametrize(
    ("means", "costs", "held"),
    [
        ((1.0, 2.0, 1.0), (1, 9, 9), [1] * 5),
        ((1.0, 0.5, 1.0), (9, 1, 1), [0, 0, 0, 0, 1]),
        ((1.0, 2.0, 0.1), (1, 9, 9), [1, 1, 0, 0, 1]),
    ],
)
def test_verdicts_of_the_convex_paper_turn_with_the_numbers(means, costs, held):
    figure, problem = figure_of("erm", "table1")
    made = risks(problem, dict(zip((erm.SVRG, erm.SGD, erm.GD), means, strict=True)), costs)
    expected = ["agrees" if one else "does not agree" for one in held]
    assert words(figure, [problem], made) == expected
    last = figure.claims[-1](Results(made), [problem])[0]
    assert "DP-SVRG -2.00 (bound -2)" in last.measured
    untold = [row for row in made if not row.seed < 0]
    assert len(words(figure, [problem], untold)) == 3  # nothing is said of what was not kept


def test_the_front_and_the_refusals_are_told():
    figure, problem = figure_of("erm", "table2", 3)
    found = Results(risks(problem, {erm.GD: 1.0, erm.SGD: 0.5, erm.PLUS: 2.0}, (9, 5, 1)))
    assert erm.dominated(found, 1.0) == [erm.GD]
    lines = figure.sections[0](found, [problem])
    assert any(line.startswith("- DP-TR: n/a, it has no proximal step") for line in lines)
    assert "| DP-GD | 4 (0) | 1 (0) |" in lines
    assert "| DP-GD | 0.009 (0.018) | 0.009 (0.018) | steps 3 (best of 1) |" in lines


def test_a_method_that_diverged_squashes_no_other_and_the_front_is_drawn(tmp_path, pictures):
    figure, problem = figure_of("erm", "table1")
    means = {erm.GD: 2e-6, erm.SGD: 1e-5, erm.TR: 1e-6, erm.NEWTON: 60.0}
    found = Results(risks(problem, means, (5, 2, 9, 3), (1.0,)))
    figures.draw(figure.picture, (problem,), found, tmp_path / "table1.png")
    (axes,) = (axes for axes in pictures["table1"].axes if axes.has_data())
    low, high = axes.get_ylim()
    assert np.log10(high / low) <= 4
    assert "off the scale:\nDP-Newton 60" in [text.get_text() for text in axes.texts]
    (front,) = (line for line in axes.lines if line.get_drawstyle() == "steps-post")
    assert list(front.get_xdata())[1:-1] == [2, 5, 9]
    texts = [text.get_text() for text in pictures["table1"].legends[0].get_texts()]
    assert texts[:3] == [erm.TR, erm.GD, erm.SGD]


# Saddles.

LAND = {"optimum": 0.5, "saddle": 1.0, "saddle_gap": 0.5, "saddle_min_eigenvalue": -0.1,
        "minimum_min_eigenvalue": 0.1, "saddle_alpha": 0.005, "hessian_lipschitz": 2.0}  # fmt: skip


def ends(problem, label, n=1_000, gap=0.01, steps=10.0, read=900.0, alpha=0.01, out=True):
    until = [steps, steps] if out else [np.inf, np.inf]
    return rows(problem, label, 1.0, n, exact_gap=[gap if out else 0.5] * 2,
                exact_gradient_norm=[0.01 if out else 0.0] * 2, exact_min_eigenvalue=[0.1, 0.1],
                exact_alpha=[alpha, alpha], exact_alpha_on_all_records=[alpha, alpha],
                exact_escaped=[float(out)] * 2, exact_iterations_until_out=until,
                exact_passes_until_out=[read if out else np.inf] * 2,
                promised_alpha=0.2)  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs", "held"),
    [
        ({}, {"gap": 0.1, "read": 9e4, "steps": 9.0}, [1, 1, 1, 1]),
        ({"read": 9e4}, {"gap": 0.001}, [1, 1, 0, 0]),
        ({"out": False}, {}, [0, 0, 0, 0]),
    ],
    ids=["as said", "slow and high", "never out"],
)
def test_verdicts_of_escapes_turn_with_the_numbers(ours, theirs, held):
    figure, problem = figure_of("spider", "escape")
    made = ends(problem, spider.SPIDER, **ours) + ends(problem, spider.BOOST, out=False)
    made += ends(problem, spider.GD, **theirs)
    expected = ["agrees" if one else "does not agree" for one in held]
    assert words(figure, [problem], made) == expected


def test_alpha_that_falls_too_slowly_is_told():
    figure, problem = figure_of("spider", "rates")

    def falling(label, **more):
        return [row for n in (1_000, 4_000, 16_000)
                for row in ends(problem, label, n, alpha=n**-0.5, **more)]  # fmt: skip

    made = falling(spider.SPIDER) + falling(spider.TR)
    # n^(-1/3) is in Spider's bound; DP-TR's is n^(-4/7), which 1/2 does not reach. Bounds at
    # n = 16,000 and d = 4: 0.051 of Spider and 0.025 of DP-TR; the measured are alike.
    assert words(figure, [problem], made) == ["agrees", "does not agree", "agrees", "agrees"]
    assert words(figure, [problem], falling(spider.BOOST, out=False)) == ["does not agree"]
    fit = claims.slope(Results(made), "exact_alpha", spider.TR)
    np.testing.assert_allclose(fit, 0.5, rtol=1e-9)


def test_where_the_bounds_cross_is_where_algebra_says():
    ours, theirs = spider.BOUNDS[0].alpha, spider.BOUNDS[3].on_population
    ((at, wins),) = spider.crossings(ours, theirs, 22, 1.0)
    # n^(-1/3) + d^(1/4) n^(-1/2) = 2 d^(1/2) n^(-1/2).
    assert not wins and at == pytest.approx((2 * 22**0.5 - 22**0.25) ** 6, rel=0.05)
    assert spider.crossings(ours, ours, 22, 1.0) == []


def test_what_never_escaped_is_said_and_drawn(tmp_path, pictures):
    for name in ("escape", "rates"):
        figure, problem = figure_of("spider", name)
        made = []
        for n in (500, 1_000):
            made += reference(problem, n, **LAND)
            made += ends(problem, spider.SPIDER, n) + ends(problem, spider.PSGD, n, out=False)
        text = "\n".join(line for part in figure.sections
                         for line in part(Results(made), [problem]))  # fmt: skip
        figures.draw(figure.picture, (problem,), Results(made), tmp_path / f"{name}.png")
        if name == "escape":
            assert "| Gauss-PSGD | each at most once | never |" in text
            assert "| Spider | each at most once | 10 (10 to 10) |" in text
    assert "Where Spider's bound is below that of DP-GD" in text
    steps = pictures["escape"].axes[1]
    assert [tick.get_text() for tick in steps.get_yticklabels()] == [spider.SPIDER, spider.PSGD]
    assert [text.get_text() for text in steps.texts] == ["never"]
    assert spider.SPIDER in [t.get_text() for axes in pictures["rates"].axes for t in axes.texts]
    assert {*spider.MANY, *spider.ONCE} == {method.label for method in spider.METHODS}


# Networks.

AS_SAID = {dpagem.NOISELESS: 0.99, dpagem.STAGE: 0.97, dpagem.CONST: 0.96, dpagem.EARLY: 0.95,
           dpagem.EARLY_CONST: 0.94, dpagem.MOMENTUM_CONST: 0.90}  # fmt: skip
SPREAD = {"spread": "holds by the means, within their spread",
          "not": "does not hold by the means, but within their spread"}  # fmt: skip


def accuracies(finals, problem, spread=0.001, seeds=3):
    """Each method ends at this accuracy, its seeds spread around it."""
    around, made = (spread * np.linspace(-1, 1, seeds) if seeds > 1 else np.zeros(1)), []
    for label, final in finals.items():
        last = (final + around).tolist()
        both = {f"exact_{field}_accuracy": last for field in ("train", "test")}
        noise = 0.0 if label == dpagem.NOISELESS else 1.5
        spent = np.inf if label == dpagem.NOISELESS else problem.epsilons[0]
        cost = {"steps": 60.0, "batch_size": 256.0, "noise_multiplier": noise}
        made += rows(problem, label, problem.epsilons[0], 60_000, "step_size 0.5", **both, **cost,
                     epsilon_of_the_noise=spent)  # fmt: skip
        path = [row._replace(step=60.0) for row in made[-4 - 2 * len(last) : -4]]
        made += path + [row._replace(step=30.0, value=0.5) for row in path]
        tried = rows(problem, label, problem.epsilons[0], 60_000, "step_size 1",
                     exact_train_accuracy=final - 0.1)  # fmt: skip
        made += [row._replace(seed=-1.0) for row in tried]
    return made


@pytest.mark.parametrize(
    ("change", "verdicts"),
    [
        ({}, ["holds"] * 4),
        ({dpagem.STAGE: 0.955}, ["does not hold", "holds", "holds", "holds"]),
        ({dpagem.EARLY: 0.89}, ["holds", "does not hold", "does not hold", "holds"]),
        ({dpagem.MOMENTUM_CONST: 0.9399}, ["holds", "holds", "spread", "holds"]),
        ({dpagem.EARLY_CONST: 0.9503}, ["holds", "not", "holds", "holds"]),
        ({dpagem.RECIPE: 0.975}, ["holds"] * 5),
    ],
    ids=[
        "as said",
        "stages lose",
        "early momentum lost",
        "near",
        "as near the other way",
        "recipe",
    ],
)
def test_verdicts_on_networks_turn_with_the_numbers(change, verdicts):
    figure, problem = figure_of("dpagem", "fig1")
    made = accuracies(AS_SAID | change, problem)
    assert words(figure, [problem], made) == [SPREAD.get(v, v) for v in verdicts]


def test_few_seeds_decide_little():
    """Welch's t of two threes: 2.78 standard errors, where many seeds need 1.96."""
    for spread, clear in ((0.0040, True), (0.0047, False)):
        around = spread * np.array([-1, 0, 1])
        one = results.difference(0.97 + around, 0.96 + around)
        assert one.freedom == pytest.approx(4) and one.clear() is clear
        assert one.error == pytest.approx(spread * np.sqrt(2 / 3))
    figure, problem = figure_of("dpagem", "fig2")
    assert (
        words(figure, [problem], accuracies(AS_SAID, problem, seeds=1)) == ["holds (one seed)"] * 4
    )
    swapped = accuracies(AS_SAID | {dpagem.MOMENTUM_CONST: 0.98}, problem, seeds=1)
    assert words(figure, [problem], swapped)[0] == "does not hold (one seed)"


@pytest.mark.parametrize(("drop", "verdict"), [(0.2, "holds"), (0.0, "does not hold")])
def test_the_gap_needs_both_data_sets(drop, verdict):
    figure = PAPERS["dpagem"].figures["gap"]
    deep = {m: v - (0.05 if m == dpagem.NOISELESS else drop) for m, v in AS_SAID.items()}
    near, far = figure.problems
    made = accuracies(AS_SAID, near) + accuracies(deep, far)
    assert words(figure, figure.problems, made) == [verdict]
    assert words(figure, [near], made) == []
    text = "\n".join(figure.sections[0](Results(made), figure.problems))
    assert "| DPageS | 2.00 +- 0.08 | 2.00 +- 0.08 |" in text  # 99 - 97 points


def test_the_page_of_networks_says_which_numbers_are_exact():
    figure, problem = figure_of("dpagem", "fig1")
    found = Results(accuracies(AS_SAID, problem))
    text = "\n".join(line for part in figure.sections for line in part(found, [problem]))
    assert "NOT PRIVATE, no epsilon |" in text and "| 97.00 +- 0.10 % |" in text
    assert "| 8 | 60 | 1.5000 |" in text and "| 8 | 14,063 |  | 0.4292 | 48 | 39 |" in text
    assert "DPageS 1: 87.00%" in text


def test_a_network_that_fails_is_in_view_and_squashes_no_other(tmp_path, pictures):
    """The error's logarithm: 30 % and 1 % to 3 % of error share an axis of less than 2 decades."""
    figure, problem = figure_of("dpagem", "fig1")
    found = Results(accuracies(AS_SAID | {dpagem.LINEAR: 0.7}, problem, spread=0.0))
    figures.draw(figure.picture, (problem,), found, tmp_path / "fig1.png")
    for axes in pictures["fig1"].axes:
        begin, end = axes.get_ylim()
        assert begin > 0.3 and end < 0.01
        names = [text.get_text() for text in axes.texts]
        assert f"{dpagem.LINEAR}  70.0 %" in names and len(names) == len(AS_SAID) + 1


# Perturbed gradient descent.


def test_noise_of_another_law_is_found_out(monkeypatch):
    figure, whole = PAPERS["perturbed"].figures["fig2"], perturbed.noise
    honest = perturbed.computed(2_000, 4)
    assert words(figure, (), honest) == ["agrees"] * 4 + ["does not agree"]
    for row in honest:
        if row.problem == perturbed.BALL:
            distance, d = float(row.settings.removeprefix("D = ")), row.dimension
            assert row.value == pytest.approx(
                dpjax.accounting.ball_delta(distance, 1.0, d), rel=1e-4
            )

    def larger(dimension, draws):  # planted: a radius that is 10 % too large
        squares, along = whole(dimension, draws)
        return 1.21 * squares, 1.1 * along

    monkeypatch.setattr(perturbed, "noise", larger)
    assert words(figure, (), perturbed.computed(2_000, 4))[0] != "agrees"
    text = "\n".join(figure.sections[0](Results(honest), ()))
    assert "| publishing T random records | 2.9e-05 |" in text and "| d = 100 |" in text


def test_the_gaussian_beside_is_that_of_the_accounting():
    for distance, dimension in ((0.1, 3), (0.5, 10)):
        noise = dpjax.accounting.Release("one", 1, (dimension + 2) ** -0.5 / distance)
        event = dpjax.accounting.Event((noise,), "replace_one")
        delta = perturbed.gaussian_delta(distance, dimension, 1.0)
        found = dpjax.accounting.epsilon(event, delta, "replace_one")
        assert found == pytest.approx(1.0, abs=1e-8) and norm.cdf(0) == 0.5
