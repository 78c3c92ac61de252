"""``dpjax reproduce`` hands over to the papers of a checkout, and elsewhere says where they are."""

import os
import sys

import pytest

from dpjax.cli import main, reproduce


def test_the_papers_of_a_checkout_are_run(monkeypatch):
    given = []
    monkeypatch.setattr(os, "execve", lambda *words: given.extend(words))
    main(["reproduce", "erm", "table1", "--quick"])
    path, words, environment = given
    assert path == sys.executable and words[1:3] == ["-P", "-m"]
    assert words[3:] == ["benchmarks.papers", "erm", "table1", "--quick"]
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(reproduce._CHECKOUT)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tholeti", "unknown paper 'tholeti' trust-region erm perturbed spider dpagem"),
        ("perturb", "perturbed"),
        ("erm --quick", "no part of the installed package `python -m benchmarks.papers erm`"),
    ],
)
def test_elsewhere_it_says_what_there_is_and_where(words, said, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(reproduce, "_CHECKOUT", tmp_path)
    assert main(["reproduce", *words.split()]) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in said.split())
