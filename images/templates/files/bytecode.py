"""Write byte code that is valid by its source's name alone, while an image is built.

    python3 bytecode.py FOLDER…

Python's own way records the times of the sources, which differ between two builds, and which builders rewrite
afterwards: then no file would be valid, and each start would compile anew. One after the other, in the order of names:
what byte code looks like depends on what the process compiled before. Files that this Python cannot parse, written for
newer ones, stay as they are.
"""

import py_compile
import shutil
import sys
import warnings
from pathlib import Path


def main(folders: list[str]) -> None:
    """Compile all modules below the folders."""
    warnings.simplefilter("ignore")
    for folder in folders:
        for cache in sorted(Path(folder).rglob("__pycache__")):
            shutil.rmtree(cache)
        for module in sorted(Path(folder).rglob("*.py")):
            try:
                py_compile.compile(
                    str(module), doraise=True, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
                )
            except py_compile.PyCompileError as error:
                sys.stderr.write(f"not compiled: {error.msg.strip().splitlines()[-1]} in {module}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
