"""``dpjax compare``: algorithms side by side on a table of your own, by exact values."""

import json

import numpy as np
import pytest

from dpjax import experiments
from dpjax.cli import main

# Options, and words of the message.
BAD = {
    "--algorithms dp-trr": "dp-trr dp-tr", "--algorithms dp-accmd": "domain",
    "--epsilons one": "--epsilons one", "--epsilons -1": "epsilon -1", "--seeds 0": "seeds 0",
    "--objective none": "none logistic",
}  # fmt: skip


@pytest.mark.parametrize(("words", "names"), BAD.items(), ids=BAD)
def test_bad_requests_name_what_there_is(words, names, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *words.split()]) == 2
    message = capsys.readouterr().err
    assert all(name in message for name in names.split()), message
    assert not list(tmp_path.iterdir())


def test_algorithms_are_compared_on_a_table_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    lines = [f"{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for a, b in random.random((200, 2))]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,sick", *lines]) + "\n")
    (tmp_path / "b.json").write_text('{"a": [0, 1], "b": [0, 1]}')
    words = """compare --data t.csv --label sick --classes no,yes --bounds b.json --delta 1e-3
        --objective logistic --algorithms dp-gd,dp-tr --epsilons 1,4 --seeds 2 --out made"""
    assert main([*words.split(), "--json", "c.json"]) == 0
    printed = capsys.readouterr()
    assert "NOT PRIVATE" in printed.err and "a release" in printed.err
    assert "NOT PRIVATE: exact values" in printed.out and "accepted labels" in printed.out
    content = json.loads((tmp_path / "c.json").read_text())
    assert content["releasable"] is False and len(content["exact_results"]) == 2 * 2 * 3
    results, one = experiments.read(tmp_path / "made/compare.csv"), content["exact_results"][0]
    mean = results.mean(one["metric"], method="dp-gd", epsilon=1.0)
    assert one["algorithm"] == "dp-gd" and one["mean"] == pytest.approx(mean)
    text = (tmp_path / "made/compare.md").read_text()
    assert "NOT PRIVATE" in text.splitlines()[0] and "untuned" in text and "one row" in text
    assert (tmp_path / "made/compare.png").exists()
