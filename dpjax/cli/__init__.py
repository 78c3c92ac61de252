"""The command line, ``dpjax``; ``main.COMMANDS`` lists its commands."""

from dpjax.cli.main import main

__all__ = ["main"]
