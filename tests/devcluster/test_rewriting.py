"""Arguments and environment of a container are translated to this machine's paths."""

from pathlib import Path

import pytest

from devcluster.kubelet.rewriting import Mount, expand, rewrite_path
from devcluster.kubelet.sources import mounts_of, process_environment

MOUNTS = (
    Mount("/data", Path("/real/data")),
    Mount("/data/cache", Path("/real/cache")),
    Mount("/dev/termination-log", Path("/real/log")),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data", "/real/data"),
        ("/data/x/y", "/real/data/x/y"),
        ("/data/cache/x", "/real/cache/x"),
        ("/data/cachet", "/real/data/cachet"),
        ("/database", "/database"),
        ("/dev/termination-log", "/real/log"),
        ("file:///data/x", "file:///real/data/x"),
        ("--out=/data/x", "--out=/real/data/x"),
        ("--out=file:///data/x", "--out=file:///real/data/x"),
        ("s3://data/x", "s3://data/x"),
        ("see /data/x", "see /data/x"),
        ("", ""),
    ],
)
def test_a_value_that_starts_with_a_mount_path_is_rewritten(text: str, expected: str) -> None:
    assert rewrite_path(text, MOUNTS) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)-$(B)", "1-2"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$A", "$A"),
    ],
)
def test_references_expand_as_kubernetes_expands_them(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


def test_a_mount_on_tmp_sets_tmpdir() -> None:
    mounts = (Mount("/tmp", Path("/real/tmp")),)
    environment = process_environment({"X": "/tmp/a"}, {"PATH": "/bin"}, mounts)
    assert environment == {"PATH": "/bin", "TMPDIR": "/real/tmp", "X": "/real/tmp/a"}


def test_a_sub_path_is_made_and_mounted(tmp_path: Path) -> None:
    container = {"volumeMounts": [{"name": "v", "mountPath": "/a", "subPath": "one"}]}
    (mount,) = mounts_of(container, {"v": tmp_path})
    assert mount.real == tmp_path / "one"
    assert mount.real.is_dir()
