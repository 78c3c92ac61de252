"""NOT PRIVATE: the papers' tables and figures on public benchmark data, with ours beside theirs."""

from dpjax.reproduce import exact, trust_region
from dpjax.reproduce.paper import PAPERS, Plan, plan, reproduce

__all__ = ["PAPERS", "Plan", "exact", "plan", "reproduce", "trust_region"]
