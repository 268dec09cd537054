"""A file:// store on a volume that operator and tasks share: two users, one group."""

import os
import stat
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from isoloss_contract.store import Patience, Store, StoreError

OPERATOR, TASK, GROUP = 65532, 1000, 4242


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_below_a_group_writable_folder_every_new_folder_is_group_writable(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    Store(f"file://{tmp_path}/sweeps").write("points/a/config.json", b"1")
    for folder in ("sweeps", "sweeps/points", "sweeps/points/a"):
        assert mode(tmp_path / folder) & 0o2070 == 0o2070, folder
        assert (tmp_path / folder).stat().st_gid == tmp_path.stat().st_gid


def test_below_any_other_folder_the_umask_decides(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    Store(f"file://{tmp_path}/sweeps").write("points/config.json", b"1")
    assert mode(tmp_path / "sweeps") == mode(tmp_path / "sweeps/points") == 0o755


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    (tmp_path / "points").mkdir(mode=0o700)
    before = mode(tmp_path / "points")
    Store(f"file://{tmp_path}").write("points/a.json", b"1")
    assert mode(tmp_path / "points") == before


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
def test_two_users_of_one_group_replace_each_others_objects(tmp_path: Path) -> None:
    volume = readable_root(tmp_path)
    write_as(OPERATOR, volume, "points/a/config.json")
    write_as(TASK, volume, "points/a/claim.json")
    write_as(TASK, volume, "points/a/config.json")
    write_as(TASK, volume, "evaluations/b/result.json")
    write_as(OPERATOR, volume, "evaluations/b/result.json")


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
def test_two_users_of_one_group_replace_an_object_with_a_condition(tmp_path: Path) -> None:
    """An operator whose user was changed goes on with the ledgers of the one before."""
    volume = readable_root(tmp_path)
    write_as(OPERATOR, volume, "ledger/head.json", conditional=True)
    write_as(TASK, volume, "ledger/head.json", conditional=True)


def readable_root(tmp_path: Path) -> Path:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)  # pytest and xdist keep theirs private
    volume = tmp_path / "volume"
    volume.mkdir()
    os.chown(volume, 0, GROUP)
    volume.chmod(0o2770)
    return volume


def held(store: Store) -> set[str]:
    """Paths in its folders, one level deep."""
    return {f"{folder}/{name}" for folder in store.names("") for name in store.names(folder)}


def write_as(user: int, volume: Path, path: str, *, conditional: bool = False) -> None:
    """Write as another user in a child process; the interpreter itself may be root's alone."""
    child = os.fork()
    if child == 0:
        os.setgroups([GROUP])
        os.setgid(user)
        os.setuid(user)
        code = 1
        try:
            store = Store(f"file://{volume}", Patience(attempts=1))
            if conditional:
                known = store.read_versioned(path)[1] if path in held(store) else None
                store.write_if(path, b"1", known)
            else:
                store.write(path, b"1")
            code = 0
        except StoreError:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, f"user {user}, {path}"
