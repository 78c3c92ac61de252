"""``report``: a trained model and its guarantee as a page for an officer, a card, or JSON."""

from dpjax.reporting.facts import Facts, Picture, Section, facts_of
from dpjax.reporting.page import report

__all__ = ["Facts", "Picture", "Section", "facts_of", "report"]
