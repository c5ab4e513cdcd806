"""Files that only the steps of a build see: authorities, and where packages come from.

They are mounted as secrets on those RUN lines that download. So nothing of them is in a layer, in the configuration or
in the history, and an image that was built with them has the id of one that was built without. Those steps are in
stages of which the image takes single folders: buildah 1.28 also takes away the file over which a secret was mounted.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from images.builders import trust
from images.builders.built import Order
from images.errors import BuildError


@contextlib.contextmanager
def secrets_of(order: Order) -> Iterator[dict[str, Path]]:
    """The secrets of an order by their ids in the Dockerfiles; the files are removed at the end.

    Raises:
        BuildError: one of them cannot be made.
    """
    contents: dict[str, str] = {}
    if order.extra_ca:
        contents["ca"] = trust.bundle(order.extra_ca)
    if order.index:
        contents["pip"] = f"[global]\nindex-url = {order.index}\n"
        contents["uv"] = f"[[index]]\nurl = {json.dumps(order.index)}\ndefault = true\n"
    with tempfile.TemporaryDirectory(prefix="trainyard-build-") as folder:  # only its owner may enter it
        files = {name: Path(folder) / name for name in contents}
        try:
            for name, file in files.items():
                file.write_text(contents[name], encoding="utf-8")
        except OSError as error:
            raise BuildError(f"the secrets of the build cannot be written: {error.strerror}") from None
        yield files
