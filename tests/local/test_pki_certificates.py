"""Certificates: private, kept while good, made anew when not."""

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from infra.local.control_plane import pki
from infra.local.control_plane.pki import Authority, Pair, Subject, kubeconfig, signing_key
from infra.local.state import State

SERVER = Subject("server", addresses=("localhost", "127.0.0.1"), client=False)
NODE = Subject("system:node:gpu-1", ("system:nodes",))


@pytest.fixture
def state(short_tmp: Path) -> State:
    return State(short_tmp / "state")


@pytest.fixture
def authority(state: State) -> Authority:
    return Authority(state, state.folder("pki"), "ca")


def load(pair: Pair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate.read_bytes())


def test_files_are_private(authority: Authority) -> None:
    for pair in (authority.pair, authority.issue("server", SERVER)):
        assert stat.S_IMODE(pair.key.stat().st_mode) == 0o600


def test_a_client_certificate_names_user_and_groups(authority: Authority) -> None:
    certificate = load(authority.issue("node", NODE))
    names = {attribute.oid: attribute.value for attribute in certificate.subject}
    assert names == {NameOID.COMMON_NAME: "system:node:gpu-1", NameOID.ORGANIZATION_NAME: "system:nodes"}
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate_pem))


def test_a_server_certificate_can_not_log_in(authority: Authority) -> None:
    certificate = load(authority.issue("server", SERVER))
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_good_ones_are_kept(state: State, authority: Authority) -> None:
    before = authority.issue("server", SERVER).certificate.read_bytes()
    again = Authority(state, state.folder("pki"), "ca")
    assert again.certificate_pem == authority.certificate_pem
    assert again.issue("server", SERVER).certificate.read_bytes() == before


@pytest.mark.parametrize("what", ["certificate missing", "key missing", "cut off", "foreign key", "other names", "old"])
def test_others_are_made_anew(authority: Authority, state: State, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "old":
        monkeypatch.setattr(pki, "LIFETIME", pki.RENEW_BEFORE - timedelta(hours=1))
    pair = authority.issue("server", SERVER)
    monkeypatch.undo()
    before, wanted = pair.certificate.read_bytes(), SERVER
    match what:
        case "certificate missing":
            pair.certificate.unlink()
        case "key missing":
            pair.key.unlink()
        case "cut off":
            pair.certificate.write_bytes(before[:200])
        case "foreign key":
            pair.key.write_bytes(authority.issue("node", NODE).key.read_bytes())
        case "other names":
            wanted = Subject("server", addresses=("localhost", "127.0.0.2"), client=False)
    again = authority.issue("server", wanted)
    assert again.certificate.read_bytes() != before
    certificate = load(again)
    key = load_pem_private_key(again.key.read_bytes(), None)
    assert key.public_key() == certificate.public_key()
    assert certificate.not_valid_after_utc > datetime.now(UTC) + timedelta(days=300)


@pytest.mark.parametrize("lost", ["crt", "key"])
def test_a_new_authority_issues_everything_anew(state: State, authority: Authority, lost: str) -> None:
    before = authority.issue("server", SERVER).certificate.read_bytes()
    state.path("pki", f"ca.{lost}").unlink()
    again = Authority(state, state.folder("pki"), "ca")
    assert again.certificate_pem != authority.certificate_pem
    assert again.issue("server", SERVER).certificate.read_bytes() != before


def test_certificates_of_one_authority_are_nothing_to_another(state: State, authority: Authority) -> None:
    other = Authority(state, state.folder("pki"), "etcd-ca")
    mine = load(authority.issue("node", NODE))
    with pytest.raises(ValueError, match="issuer"):
        mine.verify_directly_issued_by(x509.load_pem_x509_certificate(other.certificate_pem))


def test_the_signing_key_is_kept_and_has_the_format_that_kubernetes_reads(state: State) -> None:
    path = signing_key(state, state.path("sa.key"))
    before = path.read_bytes()
    assert b"BEGIN EC PRIVATE KEY" in before
    assert signing_key(state, path).read_bytes() == before
    path.write_text("half")
    assert b"BEGIN EC PRIVATE KEY" in signing_key(state, path).read_bytes()


def test_a_kubeconfig_holds_all_it_needs(authority: Authority) -> None:
    text = kubeconfig("https://127.0.0.1:1", authority.certificate_pem, authority.issue("node", NODE), "someone")
    parsed = yaml.safe_load(text)
    assert parsed["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
    assert "insecure-skip-tls-verify" not in text
    assert set(parsed["users"][0]["user"]) == {"client-certificate-data", "client-key-data"}
