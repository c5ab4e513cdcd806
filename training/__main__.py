"""`python -m training`: the launcher (`training.launch.main`), or `checkpoints` (`training.checkpoint.main`)."""

import sys

if __name__ == "__main__":
    if sys.argv[1:2] == ["checkpoints"]:
        from training.checkpoint.main import run

        sys.exit(run(sys.argv[2:]))
    from training.launch.main import main

    main()
