"""Certificates of a network that re-signs TLS: this computer's authorities and one more, for the build alone."""

from __future__ import annotations

import ssl
from pathlib import Path

from images.errors import BuildError

_BEGIN = "-----BEGIN CERTIFICATE-----"
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL, Amazon Linux
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",  # macOS
)


def bundle(extra: Path) -> str:
    """This computer's authorities and those of `extra`, to be mounted over the bundle of a base image.

    Args:
        extra: PEM file of one or more certificates.

    Raises:
        BuildError: it cannot be read, or is none.
    """
    added = _read(extra)
    own = next((Path(name) for name in (ssl.get_default_verify_paths().cafile, *_BUNDLES) if _is_file(name)), None)
    try:
        known = own.read_text(encoding="utf-8", errors="replace") if own else ""
    except OSError as error:
        raise BuildError(f"{own} cannot be read, which has this computer's authorities: {error.strerror}") from None
    return f"{known.rstrip()}\n{added.rstrip()}\n"


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
