"""Layers become a folder as the image format says, and hostile ones become nothing."""

import contextlib
import io
import os
import stat
import tarfile
from pathlib import Path

import pytest
from oci_archives import as_ordinary_user, entry, folder, hard_link, layer, link

from infra.local.folders import remove_tree
from infra.local.images.unpack import RefusedError, Unpacker, described


def unpack(root: Path, *layers: bytes) -> Unpacker:
    root.mkdir(exist_ok=True)
    unpacker = Unpacker(root)
    for one in layers:
        with tarfile.open(fileobj=io.BytesIO(one), mode="r|") as opened:
            unpacker.layer(opened)
    unpacker.finish()
    return unpacker


def files(root: Path) -> dict[str, str]:
    """Every path below a folder: what is in it, where it leads, or "/" for folders."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = "/" if path.is_dir() else path.read_text()
    return found


def test_files_links_and_folders_are_as_the_layer_says(tmp_path: Path) -> None:
    unpacked = unpack(
        tmp_path / "root",
        layer(
            folder("./", 0o711),
            folder("usr/"),
            entry("usr/program", "runs", mode=0o755, mtime=1_000_000),
            entry("lost/and/found", "no folder was announced"),
            link("bin", "usr"),
            link("absolute", "/etc/passwd"),
            hard_link("usr/again", "usr/program"),
            folder("tmp", 0o1777),
        ),
    )
    root = tmp_path / "root"
    assert files(root) == {
        "absolute": "-> /etc/passwd",
        "bin": "-> usr",
        "lost": "/",
        "lost/and": "/",
        "lost/and/found": "no folder was announced",
        "tmp": "/",
        "usr": "/",
        "usr/again": "runs",
        "usr/program": "runs",
    }
    assert (root / "usr/again").samefile(root / "usr/program")
    assert stat.S_IMODE((root / "usr/program").stat().st_mode) == 0o755
    assert (root / "usr/program").stat().st_mtime == 1_000_000
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE(root.stat().st_mode) == 0o711
    assert unpacked.size == len("runs") + len("no folder was announced")


def test_a_layer_replaces_and_removes_what_is_below_it(tmp_path: Path) -> None:
    unpack(
        tmp_path / "root",
        layer(
            entry("a/file", "1"),
            entry("a/other", "1"),
            entry("b/c/deep", "1"),
            entry("cleared/old", "1"),
            entry("cleared/below/old", "1"),
            entry("was-file", "1"),
            folder("was-folder"),
            entry("was-folder/x", "1"),
            link("was-link", "a"),
        ),
        layer(
            entry("a/file", "2"),
            entry("a/.wh.other"),
            entry(".wh.b"),
            entry("cleared/new", "2"),
            entry("cleared/below/new", "2"),
            entry("cleared/.wh..wh..opq"),
            folder("was-file"),
            entry("was-folder", "2"),
            entry("was-link", "2"),
        ),
    )
    assert files(tmp_path / "root") == {
        "a": "/",
        "a/file": "2",
        "cleared": "/",
        "cleared/below": "/",
        "cleared/below/new": "2",
        "cleared/new": "2",
        "was-file": "/",
        "was-folder": "2",
        "was-link": "2",
    }


def test_a_whiteout_spares_what_its_own_layer_brings(tmp_path: Path) -> None:
    unpack(
        tmp_path / "root",
        layer(entry("a/old", "1"), entry("kept", "1")),
        layer(entry("a/new", "2"), entry(".wh.a"), entry("kept", "2"), entry(".wh.kept"), entry(".wh..wh.plnk")),
    )
    assert files(tmp_path / "root") == {"a": "/", "a/new": "2", "kept": "2"}


def test_a_replaced_file_does_not_change_under_its_other_name(tmp_path: Path) -> None:
    unpack(tmp_path / "root", layer(entry("a", "1"), hard_link("b", "a")), layer(entry("a", "2")))
    assert files(tmp_path / "root") == {"a": "2", "b": "1"}


def test_links_on_the_way_are_followed_inside_the_image(tmp_path: Path) -> None:
    """As /bin of a distribution whose programs are all in /usr/bin."""
    unpack(
        tmp_path / "root",
        layer(folder("usr/bin"), link("bin", "usr/bin"), link("abs", "/usr"), link("up", "../../../../usr")),
        layer(entry("bin/a", "1"), entry("abs/b", "2"), entry("up/c", "3"), hard_link("up/d", "bin/a")),
    )
    assert files(tmp_path / "root") == {
        "abs": "-> /usr",
        "bin": "-> usr/bin",
        "up": "-> ../../../../usr",
        "usr": "/",
        "usr/b": "2",
        "usr/bin": "/",
        "usr/bin/a": "1",
        "usr/c": "3",
        "usr/d": "1",
    }


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ([entry("../outside", "x")], "leads out of the image"),
        ([entry("a/../../outside", "x")], "leads out of the image"),
        ([entry("/outside", "x")], "leads out of the image"),
        ([hard_link("stolen", "../secret")], "leads out of the image"),
        ([hard_link("stolen", "/secret")], "leads out of the image"),
        ([hard_link("stolen", "nothing")], "which is no file of it"),
        ([link("up", "../../.."), hard_link("stolen", "up/secret")], "which is no file of it"),
        ([entry("a/.wh...")], "would remove a folder that it lies in"),
        ([entry(".wh..")], "would remove a folder that it lies in"),
        ([entry("a/.wh.")], "would remove a folder that it lies in"),
        ([entry("./", "x")], "would take the place of the image itself"),
        ([link("a", "b"), link("b", "a"), entry("a/x", "x")], "in a circle"),
        ([entry("file", "x"), entry("file/below", "x")], "no folder"),
        ([hard_link("a", "a/b")], "is a hard link to"),
        ([entry("a/b", "x"), hard_link("a", "a/b")], "cannot be made"),
        ([link("empty", "")], "cannot be made"),
        ([entry("n" * 300, "x")], "cannot be made: File name too long"),
        ([entry("d/" * 300 + "x", "x")], "more than 256 folders"),
        ([folder("d/" * 256 + "x")], "more than 256 folders"),
        ([link("more", "d/" * 200), folder("d/" * 200), folder("more/" + "e/" * 60)], "more than 256 folders"),
        ([entry("odd", type=b"Z", pax_headers={"size": str(1 << 60)})], "of a kind that nobody knows"),
        (
            [entry("holes", "x", pax_headers={"GNU.sparse.size": "1", "GNU.sparse.name": "holes"})],
            "is stored with holes",
        ),
    ],
)
def test_a_hostile_layer_is_refused(tmp_path: Path, attack: list[tuple[tarfile.TarInfo, bytes]], reason: str) -> None:
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(RefusedError, match=reason):
        unpack(tmp_path / "root", layer(*attack))
    assert files(tmp_path).keys() - {"root", "secret"} == {name for name in files(tmp_path) if name.startswith("root/")}


def test_links_out_of_the_image_lead_nobody_out_of_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("as it was")
    attack = [
        link("absolute", str(outside)),
        entry("absolute/new", "x"),
        entry("absolute/precious", "x"),
        link("relative", "../outside"),
        entry("relative/precious", "x"),
        entry("relative/.wh.precious"),
        entry("relative/.wh..wh..opq"),
        link("final", f"{outside}/precious"),
        entry("final", "x"),
        link("gone", str(outside)),
        entry(".wh.gone"),
        folder("gone"),
    ]
    unpack(tmp_path / "root", layer(*attack), layer(*attack))
    assert files(outside) == {"precious": "as it was"}
    inside = tmp_path / "root" / str(outside).removeprefix("/")
    assert files(inside) == {"new": "x", "precious": "x"}


@pytest.mark.parametrize("last", [link("a", "{outside}"), link("a", "../outside"), folder("a"), entry("a", "x")])
def test_rights_of_a_folder_are_not_given_to_what_a_link_in_its_place_leads_to(
    tmp_path: Path, last: tuple[tarfile.TarInfo, bytes]
) -> None:
    outside = tmp_path / "outside"
    (outside / "etc").mkdir(parents=True)
    (outside / "etc").chmod(0o750)
    before = (outside / "etc").stat()
    last[0].linkname = last[0].linkname.format(outside=outside)
    unpack(tmp_path / "root", layer(folder("a"), folder("a/etc", 0o777, uid=7, gid=7, mtime=5)), layer(last))
    assert (outside / "etc").stat() == before


def test_a_folder_that_comes_again_without_being_announced_has_no_old_rights(tmp_path: Path) -> None:
    unpack(tmp_path / "root", layer(folder("a", 0o700, uid=7)), layer(entry(".wh.a")), layer(entry("a/x", "x")))
    assert stat.S_IMODE((tmp_path / "root/a").stat().st_mode) == 0o755
    assert (tmp_path / "root/a").stat().st_uid == os.geteuid()


def test_names_are_bytes_and_both_cases_are_two(tmp_path: Path) -> None:
    unpack(
        tmp_path / "root", layer(entry("caf\udce9", "1"), entry("Name", "2"), entry("name", "3"), link("l", "\udcff"))
    )
    found = sorted(os.fsencode(path.name) for path in (tmp_path / "root").iterdir())
    assert found == [b"Name", b"caf\xe9", b"l", b"name"]


def test_of_entries_with_one_name_the_last_one_counts(tmp_path: Path) -> None:
    unpack(tmp_path / "root", layer(entry("a", "1"), folder("a"), entry("a/x", "x"), link("a", "b"), entry("a", "2")))
    assert files(tmp_path / "root") == {"a": "2"}


def test_a_file_that_does_not_fit_is_not_begun(tmp_path: Path) -> None:
    bomb = layer(entry("huge", pax_headers={"size": str(1 << 50)}))
    with pytest.raises(OSError, match="No space left"):
        unpack(tmp_path / "root", bomb)
    assert files(tmp_path / "root") == {}


def test_devices_pipes_and_special_rights_are_left_out_and_said(tmp_path: Path) -> None:
    unpacked = unpack(
        tmp_path / "root",
        layer(
            entry("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
            entry("disk", type=tarfile.BLKTYPE, devmajor=8),
            entry("pipe", type=tarfile.FIFOTYPE),
            entry("su", "x", mode=0o4755),
            entry("mail", "x", mode=0o2755),
            entry("ping", "x", mode=0o755, pax_headers={"SCHILY.xattr.security.capability": "cap"}),
        ),
    )
    assert list(described(unpacked.left_out)) == [
        "2 device files",
        "1 file capabilities",
        "1 pipes and sockets",
        "2 set-user-ID and set-group-ID bits",
    ]
    assert files(tmp_path / "root") == {"su": "x", "mail": "x", "ping": "x"}
    assert stat.S_IMODE((tmp_path / "root/su").stat().st_mode) == 0o755


def test_times_that_cannot_be_are_not_an_error(tmp_path: Path) -> None:
    impossible = {"early": "-5.0", "late": "1e17", "later": "inf", "never": "nan"}
    unpack(
        tmp_path / "root", layer(*(entry(name, "x", pax_headers={"mtime": when}) for name, when in impossible.items()))
    )
    assert (tmp_path / "root/early").stat().st_mtime == (tmp_path / "root/never").stat().st_mtime == 0


def test_an_ordinary_user_gets_closed_folders_and_can_delete_them(short_tmp: Path) -> None:
    def act() -> None:
        unpacked = unpack(
            short_tmp / "root",
            layer(folder("closed", 0o500, uid=0), entry("closed/file", "x", mode=0o400, uid=7), folder("dark", 0)),
            layer(entry("closed/more", "y"), entry("dark/side", "z"), entry("closed/.wh.file")),
        )
        assert not unpacked.owners
        closed = short_tmp / "root/closed"
        assert stat.S_IMODE(closed.stat().st_mode) == 0o500
        assert stat.S_IMODE((short_tmp / "root/dark").stat().st_mode) == 0
        assert [path.name for path in closed.iterdir()] == ["more"]
        assert closed.stat().st_uid == os.geteuid()
        remove_tree(short_tmp / "root")
        assert not (short_tmp / "root").exists()
        remove_tree(short_tmp / "root")

    as_ordinary_user(short_tmp, act)


def test_a_root_who_has_few_users_is_told_that_owners_are_lost(short_tmp: Path) -> None:
    """As in a container that maps some user IDs only; any user can play it."""

    def act() -> None:
        (short_tmp / "root").mkdir()
        unpacker = Unpacker(short_tmp / "root")
        unpacker.owners = True
        with tarfile.open(fileobj=io.BytesIO(layer(entry("a", "x", uid=7), entry("b", "x", uid=7)))) as opened:
            unpacker.layer(opened)
        assert list(described(unpacker.left_out)) == ["1 owner that cannot be given here, and all after it"]

    as_ordinary_user(short_tmp, act)


def test_a_tree_deeper_than_any_stack_is_removed(tmp_path: Path) -> None:
    """As a program of a pod may leave one."""
    deep = tmp_path / "deep"
    deep.mkdir()
    with contextlib.chdir(deep):
        for _ in range(3000):
            Path("folder").mkdir()
            os.chdir("folder")
    remove_tree(deep)
    assert not deep.exists()


def test_root_keeps_the_owners(tmp_path: Path) -> None:
    unpacked = unpack(
        tmp_path / "root",
        layer(folder("home", 0o700, uid=65532, gid=65532), entry("home/x", "x", uid=65532, gid=7), link("l", "home")),
    )
    found = [(tmp_path / "root" / name).lstat() for name in ("home", "home/x", "l")]
    expected = [(65532, 65532), (65532, 7), (0, 0)] if unpacked.owners else [(os.geteuid(), os.getegid())] * 3
    assert [(one.st_uid, one.st_gid) for one in found] == expected
