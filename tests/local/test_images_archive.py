"""An archive is believed only as far as its digests go, and what is wrong with it is said plainly."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from oci_archives import INDEX, Layout, entry, layer, sha256

from infra.local.errors import LocalClusterError
from infra.local.images.archive import MOST_TEXT, Archive, this_architecture

SMALL = layer(entry("file", "content"))


def read(path: Path) -> Archive:
    """Read an archive with all its layers."""
    with Archive(path) as archive, archive.plain_errors():
        for one in archive.layers(lambda _: None):
            one.getmembers()
    return archive


@pytest.mark.parametrize("zipped", [True, False])
def test_an_archive_tells_what_it_holds(tmp_path: Path, zipped: bool) -> None:
    layout = Layout(SMALL, layer(entry("b", "x" * 100_000)), zipped=zipped, User="65532", Cmd=["run"])
    manifest = layout.manifest()
    seen: list[int] = []
    with Archive(layout.write(tmp_path / "a.tar")) as archive, archive.plain_errors():
        names = [[member.name for member in one] for one in archive.layers(seen.append)]
    assert names == [["file"], ["b"]]
    assert sum(seen) == archive.size == sum(blob["size"] for blob in layout.layers)
    assert archive.name == "trainyard/small:1"
    assert archive.digest == manifest["digest"]
    assert archive.image_id == sha256(json.dumps(layout.config).encode())
    assert archive.config == {"User": "65532", "Cmd": ["run"]}
    assert archive.architecture == this_architecture()


def test_the_image_of_this_computer_is_chosen_among_several_and_statements_are_none(tmp_path: Path) -> None:
    foreign = Layout(SMALL, name=None)
    foreign.config["architecture"] = "s390x"
    foreign.platform = {"os": "linux", "architecture": "s390x"}
    layout = Layout(SMALL)
    layout.platform = {"os": "linux", "architecture": this_architecture()}
    statement = layout.document({"layers": [], "config": {}}) | {
        "annotations": {"vnd.docker.reference.type": "attestation-manifest"},
        "platform": {"os": "unknown", "architecture": "unknown"},
    }
    manifests = [foreign.manifest(), statement, layout.manifest()]
    layout.blobs |= foreign.blobs
    nested = layout.document({"mediaType": INDEX, "manifests": manifests}, mediaType=INDEX)
    nested["annotations"] = {"io.containerd.image.name": "docker.io/trainyard/several:2"}
    layout.index = {"manifests": [nested]}
    archive = read(layout.write(tmp_path / "a.tar"))
    assert archive.digest == manifests[2]["digest"]
    assert archive.name == "docker.io/trainyard/several:2"


def test_images_for_other_computers_need_not_be_in_the_archive(tmp_path: Path) -> None:
    """`docker save` writes the index of all platforms, and the content of the one that it pulled."""
    layout = Layout(SMALL)
    layout.platform = {"os": "linux", "architecture": this_architecture()}
    missing = {
        "digest": "sha256:" + "0" * 64,
        "size": 500,
        "platform": {"os": "linux", "architecture": "s390x"},
    }
    layout.others = [missing]
    assert read(layout.write(tmp_path / "a.tar")).name == "trainyard/small:1"
    layout.index = {"manifests": [missing]}
    with pytest.raises(LocalClusterError, match="its image is for linux/s390x"):
        read(layout.write(tmp_path / "b.tar"))


def test_an_image_for_other_computers_is_refused(tmp_path: Path) -> None:
    layout = Layout(SMALL)
    layout.config["architecture"] = "s390x"
    with pytest.raises(LocalClusterError, match=f"linux/s390x, and this computer is linux/{this_architecture()}"):
        read(layout.write(tmp_path / "a.tar"))
    layout.platform = {"os": "linux", "architecture": "s390x"}
    with pytest.raises(LocalClusterError, match="--platform linux/"):
        read(layout.write(tmp_path / "b.tar"))


def _two(layout: Layout) -> None:
    layout.others = [layout.manifest()]
    layout.config["created"] = "2020-01-01T00:00:00Z"
    layout.name = "trainyard/small:2"


def _endless(layout: Layout) -> None:
    one = layout.document({"manifests": []})
    for _ in range(10):
        one = layout.document({"manifests": [one]})
    layout.index = {"manifests": [one]}


def _swapped(layout: Layout) -> None:
    digest = layout.layers[0]["digest"]
    layout.blobs[digest] = gzip.compress(layer(entry("file", "another")), mtime=0)
    layout.layers[0]["size"] = len(layout.blobs[digest])


def _longer(layout: Layout) -> None:
    layout.layers[0]["size"] += 1


def _cut(layout: Layout) -> None:
    digest = layout.layers[0]["digest"]
    layout.blobs[digest] = layout.blobs[digest][:-20]


def _other_content(layout: Layout) -> None:
    layout.config["rootfs"]["diff_ids"] = [sha256(b"another")]


def _fewer(layout: Layout) -> None:
    layout.config["rootfs"]["diff_ids"] = []


def _huge_header(layout: Layout) -> None:
    bomb = tarfile.TarInfo("pax")
    bomb.type, bomb.size = tarfile.XHDTYPE, MOST_TEXT + 1
    content = bomb.tobuf() + bytes(MOST_TEXT + 512) + SMALL
    layout.layers = [layout.add(gzip.compress(content))]
    layout.config["rootfs"]["diff_ids"] = [sha256(content)]


def _zstd(layout: Layout) -> None:
    layout.layers = [layout.add(b"\x28\xb5\x2f\xfd0000")]


def _content(layout: Layout, content: bytes) -> None:
    layout.layers = [layout.add(gzip.compress(content))]
    layout.config["rootfs"]["diff_ids"] = [sha256(content)]


def _with_header(change: Callable[[tarfile.TarInfo], None], body: bytes = b"") -> Callable[[Layout], None]:
    """A layer of one honest file, one with a header that was changed, and another honest file."""

    def act(layout: Layout) -> None:
        odd = tarfile.TarInfo("odd")
        change(odd)
        filled = body + bytes(-len(body) % 512)
        _content(layout, SMALL[:1024] + odd.tobuf(tarfile.GNU_FORMAT) + filled + SMALL)

    return act


def _negative(header: tarfile.TarInfo) -> None:
    header.size = -512


def _unknown_negative(header: tarfile.TarInfo) -> None:
    header.size, header.type = -1024, b"Z"


def _old_sparse(header: tarfile.TarInfo) -> None:
    header.type = tarfile.GNUTYPE_SPARSE


def _extension(text: str) -> Callable[[Layout], None]:
    def change(header: tarfile.TarInfo) -> None:
        header.type, header.size = tarfile.XHDTYPE, len(text)

    return _with_header(change, text.encode())


def _record(key: str, value: str) -> str:
    length = len(key) + len(value) + 3
    while len(f"{length} {key}={value}\n") != length:
        length += 1
    return f"{length} {key}={value}\n"


def _damaged_header(layout: Layout) -> None:
    _content(layout, SMALL[:1024] + b"x" * 512 + SMALL)


def _thousands_of_extensions(layout: Layout) -> None:
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    _content(layout, header.tobuf() * 5000 + SMALL)


def _setting(**config: object) -> Callable[[Layout], None]:
    def change(layout: Layout) -> None:
        layout.config["config"] = config

    return change


def _escape_sequences(layout: Layout) -> None:
    _two(layout)
    layout.name = "trainyard/\x1b]0;pwned\x07"


def _no_digest(layout: Layout) -> None:
    layout.layers[0]["digest"] = "sha256:../../../../etc/passwd"


def _index(value: object) -> Callable[[Layout], None]:
    def change(layout: Layout) -> None:
        layout.index = value  # type: ignore[assignment]

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_two, r"holds 2 images: trainyard/small:1, trainyard/small:2"),
        (_endless, "indexes without end"),
        (_swapped, "the digest of sha256:.* is sha256:"),
        (_longer, "has .* bytes, not"),
        (_cut, "damaged or cut short"),
        (_other_content, "the digest of"),
        (_fewer, "disagree about the layers"),
        (_huge_header, "a header of"),
        (_zstd, "compressed by zstd"),
        (_damaged_header, "a header in it: "),
        (_with_header(_negative), "a size of -512 bytes"),
        (_with_header(_unknown_negative), "a size of -1024 bytes"),
        (_with_header(_old_sparse), "stored with holes"),
        (_extension(_record("size", "-512")), "a size of -512 bytes"),
        (_extension(_record("GNU.sparse.map", "0,x")), "damaged or cut short"),
        (_extension(_record("GNU.sparse.size", "9" * 5000)), "damaged or cut short"),
        (_extension(_record("GNU.sparse.major", "1") + _record("GNU.sparse.minor", "0")), "stored with holes"),
        (_thousands_of_extensions, "recursion"),
        (_setting(Env=["A=1", None]), "Env of its configuration is no list of texts"),
        (_setting(Cmd="run"), "Cmd of its configuration is no list of texts"),
        (_setting(User=5), "User of its configuration is no text"),
        (_escape_sequences, r"trainyard/\\x1b"),
        (_no_digest, "is no sha256 digest"),
        (_index([]), "isn't a JSON object"),
        (_index({}), "isn't what an OCI image archive must be"),
        (_index({"manifests": 5}), "isn't what an OCI image archive must be"),
        (_index({"manifests": [{"digest": "sha256:" + "0" * 64, "size": 2}]}), "is missing in it"),
        (_index({"manifests": [{"digest": "sha256:" + "0" * 64, "size": -1}]}), "is no size"),
        (_index({"manifests": []}), "there is no image in it"),
    ],
)
def test_what_is_wrong_with_an_archive_is_said(tmp_path: Path, change: Callable[[Layout], None], reason: str) -> None:
    layout = Layout(SMALL)
    change(layout)
    with pytest.raises(LocalClusterError, match=reason) as raised:
        read(layout.write(tmp_path / "a.tar"))
    assert "next: " in str(raised.value)


def test_other_files_are_no_archives(tmp_path: Path) -> None:
    path = tmp_path / "file.tar"
    for content, reason in (
        (b"", "no tar file"),
        (b"no tar", "no tar file"),
        (gzip.compress(SMALL), "gunzip"),
        (SMALL, "no index.json"),
        (layer(entry("manifest.json", "[]")), "before 25"),
        (layer(entry("index.json", "{")), "isn't JSON"),
        (layer(entry("index.json", "[" * 200_000)), "isn't JSON"),
        (layer(entry("index.json", "{}", pax_headers={"size": "9" * 30})), "isn't what an OCI image archive"),
        (layer(entry("x", pax_headers={"GNU.sparse.size": "x"}), entry("index.json", "{}")), "no tar file"),
        (
            layer(entry("x"), entry("y", pax_headers={"GNU.sparse.size": "x"})),
            "isn't what an OCI image archive must be",
        ),
        (layer(entry("index.json", type=tarfile.SYMTYPE, linkname="/etc/passwd")), "index.json is missing"),
    ):
        path.write_bytes(content)
        with pytest.raises(LocalClusterError, match=reason):
            Archive(path)
    for other in (tmp_path, tmp_path / "none"):
        with pytest.raises(LocalClusterError, match="can't be read"):
            Archive(other)


def test_a_blob_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    layout = Layout(SMALL)
    digest = layout.layers[0]["digest"].removeprefix("sha256:")
    whole = layout.write(tmp_path / "whole.tar", leave_out=[f"blobs/sha256/{digest}"])
    with tarfile.open(whole, "a") as tar:
        tar.addfile(entry(f"blobs/sha256/{digest}", type=tarfile.SYMTYPE, linkname="/etc/passwd")[0], io.BytesIO())
    with pytest.raises(LocalClusterError, match="is missing in it"):
        read(whole)
