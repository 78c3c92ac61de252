"""The command line: ``dpjax run``, ``dpjax calibrate``, ``dpjax data``, ``dpjax ledger``."""

from dpjax.cli.main import main

__all__ = ["main"]
