"""Certificates that only the build sees: this computer's authorities and one more.

The file is mounted as a secret over the bundle of the base image, on those RUN lines that download. So nothing of it is
in a layer, in the configuration or in the history, and an image built with it has the id of one built without.
"""

from __future__ import annotations

import contextlib
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

from images.errors import BuildError

SECRET = "ca"  # noqa: S105 - its id in the Dockerfiles
_BEGIN = "-----BEGIN CERTIFICATE-----"
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL, Amazon Linux
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",  # macOS
)


@contextlib.contextmanager
def bundle(extra: Path) -> Iterator[Path]:
    """A file with this computer's authorities and those of `extra`, removed at the end.

    Args:
        extra: PEM file of one or more certificates.

    Raises:
        BuildError: it cannot be read, or is none.
    """
    added = _read(extra)
    own = next((Path(name) for name in (ssl.get_default_verify_paths().cafile, *_BUNDLES) if _is_file(name)), None)
    with tempfile.TemporaryDirectory(prefix="trainyard-ca-") as folder:
        file = Path(folder) / "bundle.pem"
        try:
            known = own.read_text(encoding="utf-8", errors="replace") if own else ""
            file.write_text(f"{known.rstrip()}\n{added.rstrip()}\n", encoding="utf-8")
        except OSError as error:
            raise BuildError(f"the authorities for the build cannot be put together: {error.strerror}") from None
        yield file


def _read(extra: Path) -> str:
    try:
        text = extra.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        text = ""
    except OSError as error:
        raise BuildError(f"--extra-ca {extra} cannot be read: {error.strerror}") from None
    if _BEGIN not in text:
        raise BuildError(
            f"--extra-ca {extra} holds no certificate in PEM form ({_BEGIN}). From DER:"
            f" openssl x509 -inform der -in {extra.name} -out authority.pem"
        )
    try:
        ssl.create_default_context(cadata=text)
    except ssl.SSLError as error:
        raise BuildError(f"--extra-ca {extra} holds a damaged certificate: {error}") from None
    return text


def _is_file(name: str | None) -> bool:
    return bool(name) and Path(str(name)).is_file()
