"""`python -m headway`: the command line where its script is not on the path."""

import sys

from headway.cli import main

sys.exit(main())
