"""`python -m training [torchrun's options] script.py`: see `training.launch.main`."""

from training.launch.main import main

if __name__ == "__main__":
    main()
