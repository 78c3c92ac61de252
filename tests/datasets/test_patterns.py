"""Patterns of columns in a schema, for wide tables."""

import numpy as np
import pytest

import dpjax

LABEL = {"column": "y", "classes": [0, 1]}


def table(names):
    return {name: np.arange(4.0) for name in names} | {"y": np.array([0, 1, 0, 1])}


def load(names, columns, **more):
    schema = {"label": LABEL, "columns": columns} | more
    return dpjax.datasets.load(table(names), schema=schema)


def test_a_pattern_declares_all_columns_that_it_matches_and_a_name_wins():
    columns = {"c*": {"bounds": [0, 3]}, "c2": {"ignore": True}, "d": {"bounds": [0, 9]}}
    data = load(["d", "c1", "c2", "c3"], columns, intercept=False)
    assert data.preprocessing.features == ("c1", "c3", "d")
    named = {f"c{i}": {"bounds": [0, 3]} for i in (1, 3)} | {"c2": {"ignore": True}}
    same = load(["d", "c1", "c2", "c3"], named | {"d": {"bounds": [0, 9]}}, intercept=False)
    np.testing.assert_array_equal(data.x, same.x)


def test_label_and_unit_match_no_pattern_and_a_column_of_its_name_is_no_pattern():
    columns = {"*": {"bounds": [0, 3]}}
    assert load(["a", "b"], columns).preprocessing.features == ("a", "b", "intercept")
    assert load(["*"], columns).preprocessing.features == ("*", "intercept")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"e*": {"bounds": [0, 3]}, "c1": {"bounds": [0, 3]}}, "matches no column"),
        ({"c*": {"bounds": [0, 3]}, "c?": {"bounds": [0, 3]}}, "'c1' matches"),
    ],
)
def test_a_pattern_without_a_column_and_a_column_of_two_patterns_are_refused(columns, words):
    with pytest.raises(ValueError, match=words):
        load(["c1"], columns)
