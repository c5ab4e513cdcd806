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
