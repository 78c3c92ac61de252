"""``python -m dpjax``: the command line."""

import sys

from dpjax.cli import main

sys.exit(main())
