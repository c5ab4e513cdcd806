"""Download a file while an image is built; it stays only if its sum is the one that was written down.

    python3 fetch.py URL SHA256 FILE

Without a sum the build ends, and says which sum the file has: whoever trusts it writes it down.
"""

import hashlib
import shutil
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

TRIES = 4
WAIT = 5.0  # seconds, times the number of the try


def main(url: str, wanted: str, target: str) -> None:
    """Fetch, compare, or end with a sentence."""
    file = Path(target)
    for number in range(1, TRIES + 1):
        try:
            with urllib.request.urlopen(url, timeout=60) as answer, file.open("wb") as out:  # noqa: S310 - https, from the matrix
                shutil.copyfileobj(answer, out, 1 << 20)
            break
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            if number == TRIES:
                sys.exit(f"{url}: {error}")
            time.sleep(WAIT * number)
    with file.open("rb") as done:
        found = hashlib.file_digest(done, "sha256").hexdigest()
    if found == wanted:
        return
    file.unlink()
    if not wanted:
        sys.exit(
            f"{url}: no sum is written down for it, so it is not used. It has {found} now; if that is what its maker"
            " published, put it into images/matrix.toml (sha256), or give it to this build as an argument."
        )
    sys.exit(f"{url}: the sum is {found}, but {wanted} was written down; the file was changed or damaged.")


if __name__ == "__main__":
    main(*sys.argv[1:])
