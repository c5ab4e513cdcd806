"""The certificates of one local cluster: its own authorities, one key pair per part, nothing shared, all checked.

Two authorities, because whoever holds any certificate of etcd's authority may read every secret of the cluster:
`ca` signs what talks to the API server and the kubelets, `etcd-ca` only etcd and the API server's client of it.
Files are made when missing, damaged, foreign to the authority, too short-lived or issued for other names; the rest
stays, so that running processes and handed-out kubeconfigs stay valid.
"""

import base64
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from infra.local.state import State

LIFETIME = timedelta(days=365)
AUTHORITY_LIFETIME = timedelta(days=3650)
RENEW_BEFORE = timedelta(days=30)
_CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class Pair:
    """Paths of a certificate and its key, both PEM."""

    certificate: Path
    key: Path

    @classmethod
    def named(cls, name: str, folder: Path) -> "Pair":
        """Where the pair `name` of a folder is, or would be."""
        return cls(folder / f"{name}.crt", folder / f"{name}.key")


@dataclass(frozen=True)
class Subject:
    """Whom a certificate names.

    Attributes:
        common_name: The user or server name (CN).
        groups: The user's groups (O).
        addresses: IP addresses and DNS names that a server answers to; empty for clients.
        client: Usable to log in.
    """

    common_name: str
    groups: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    client: bool = True


class Authority:
    """One certificate authority in a folder of the state."""

    def __init__(self, state: State, folder: Path, name: str) -> None:
        self._state = state
        self._folder = folder
        self.pair = Pair.named(name, folder)
        loaded = _load(self.pair)
        if loaded is None or _expires_soon(loaded[0]) or not _issued_by(loaded[0], loaded[1]):
            loaded = self._make(name)
        self._certificate, self._key = loaded

    @property
    def certificate_pem(self) -> bytes:
        """The authority's certificate, with which others check what it signed."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, subject: Subject, folder: Path | None = None) -> Pair:
        """The pair `name` for `subject`; the one on disk where it's still good."""
        pair = Pair.named(name, folder or self._folder)
        loaded = _load(pair)
        if loaded is not None and not _expires_soon(loaded[0]) and self._signed(loaded[0]):
            fresh = _subject_of(loaded[0])
            if fresh == subject:
                return pair
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH] if subject.client else []
        usages += [ExtendedKeyUsageOID.SERVER_AUTH] if subject.addresses else []
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(subject.common_name, subject.groups))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if subject.addresses:
            names = x509.SubjectAlternativeName([_general_name(address) for address in subject.addresses])
            builder = builder.add_extension(names, critical=False)
        _store(self._state, pair, builder.sign(self._key, hashes.SHA256()), key)
        return pair

    def _signed(self, certificate: x509.Certificate) -> bool:
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def _make(self, name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        # The serial in the name: clients that meet certificates of an earlier authority say "unknown authority"
        # instead of "bad signature".
        subject = _name(f"trainyard local {name} {x509.random_serial_number() % 10**8}", ())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + AUTHORITY_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        _store(self._state, self.pair, certificate, key)
        return certificate, key


def signing_key(state: State, path: Path) -> Path:
    """The key that signs service account tokens; made when missing or damaged."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        if isinstance(key, ec.EllipticCurvePrivateKey) and path.read_bytes() == _key_pem(key):
            return path
    except (OSError, ValueError):
        pass
    state.write(path, _key_pem(ec.generate_private_key(ec.SECP256R1())))
    return path


def kubeconfig(server: str, authority: bytes, pair: Pair, user: str, name: str = "trainyard-local") -> str:
    """A kubeconfig with everything embedded, so that it can be copied."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": _b64(authority)}}],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": _b64(pair.certificate.read_bytes()),
                        "client-key-data": _b64(pair.key.read_bytes()),
                    },
                }
            ],
            "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        },
        sort_keys=False,
    )


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _load(pair: Pair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    """The pair on disk, or None where it's missing, damaged or doesn't belong together."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        key = serialization.load_pem_private_key(pair.key.read_bytes(), password=None)
    except (OSError, ValueError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        return None
    return certificate, key


def _store(state: State, pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    # The key first: a certificate without its key is what an interruption leaves, and _load doesn't accept that.
    state.write(pair.key, _key_pem(key))
    state.write(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    # The older of the two formats: Kubernetes doesn't read service account keys in PKCS #8.
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _expires_soon(certificate: x509.Certificate) -> bool:
    return certificate.not_valid_after_utc - datetime.now(UTC) < RENEW_BEFORE


def _issued_by(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bool:
    return certificate.subject == certificate.issuer and certificate.public_key() == key.public_key()


def _subject_of(certificate: x509.Certificate) -> Subject:
    def values(oid: x509.ObjectIdentifier) -> tuple[str, ...]:
        return tuple(str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(oid))

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        addresses: tuple[str, ...] = ()
    else:
        addresses = tuple(str(name.value) for name in names)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    return Subject(
        common_name="".join(values(NameOID.COMMON_NAME)),
        groups=values(NameOID.ORGANIZATION_NAME),
        addresses=addresses,
        client=ExtendedKeyUsageOID.CLIENT_AUTH in usage,
    )


def _name(common_name: str, groups: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
