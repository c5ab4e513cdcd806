"""`python -m training.controller`."""

import sys

from training.controller.main import main

sys.exit(main())
