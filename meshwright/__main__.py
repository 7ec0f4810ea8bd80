"""`python -m meshwright`: the command, where its script is not on the path."""

import sys

from meshwright.cli import main

sys.exit(main())
