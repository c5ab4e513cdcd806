"""`python -m training [torchrun's options] script.py`: see `training.launch.main`."""

import sys

from training.launch.main import main

if __name__ == "__main__":
    sys.exit(main())
