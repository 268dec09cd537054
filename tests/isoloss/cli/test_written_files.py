"""Results are written as a whole or not at all, never over what a command reads, and leave nothing old behind."""

import contextlib
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isoloss.errors import BadInput
from isoloss.laws_files import write_file
from tests.support.command_line import Isoloss


@contextlib.contextmanager
def files_of_at_most(count: int) -> Iterator[None]:
    """As on a disk that becomes full after so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_fails_half_way_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "laws.json"
    path.write_text("the old laws")
    with files_of_at_most(4), pytest.raises(BadInput, match="File too large"):
        write_file(path, "the new laws")
    assert path.read_text() == "the old laws"
    assert list(tmp_path.iterdir()) == [path]


def test_whoever_reads_a_file_while_it_is_written_has_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "laws.json"
    write_file(path, "old")
    with path.open() as reader:
        write_file(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"


def test_a_new_file_has_the_permissions_of_the_umask_and_an_old_one_keeps_its_own(
    tmp_path: Path,
) -> None:
    path, plain = tmp_path / "laws.json", tmp_path / "plain"
    plain.touch()
    write_file(path, "a")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    path.chmod(0o640)
    write_file(path, "b")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_stays_one(tmp_path: Path) -> None:
    target, link = tmp_path / "v1.json", tmp_path / "laws.json"
    target.write_text("old")
    link.symlink_to(target)
    write_file(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_pipe_gets_what_is_written(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        write_file(pipe, "the laws")
        assert reader.stdout is not None
        assert reader.stdout.read() == b"the laws"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("is_piped", [True, False])
def test_standard_output_gets_what_is_written(tmp_path: Path, is_piped: bool) -> None:
    code = "from pathlib import Path; from isoloss.laws_files import write_file; write_file(Path('/dev/stdout'), 'laws')"
    if is_piped:
        assert subprocess.check_output([sys.executable, "-c", code]) == b"laws"
        return
    with (tmp_path / "out").open("wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
        file.write(b"")
        assert os.fstat(file.fileno()).st_ino == (tmp_path / "out").stat().st_ino
    assert (tmp_path / "out").read_bytes() == b"laws"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_may_be_written_to_in_a_folder_that_takes_no_other(tmp_path: Path) -> None:
    path = tmp_path / "laws.json"
    path.write_text("old")
    tmp_path.chmod(0o555)
    try:
        write_file(path, "new")
    finally:
        tmp_path.chmod(0o755)
    assert path.read_text() == "new"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_is_protected_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "laws.json"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(BadInput, match="Permission denied"):
        write_file(path, "new")


@pytest.mark.parametrize("arguments", [("laws",), ("laws", "--json"), ("--help",)])
def test_standard_output_that_is_full_is_said_in_a_sentence(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "isoloss", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert ended.returncode == 2
    assert ended.stderr == b"isoloss: standard output: No space left on device\n"


@pytest.mark.usefixtures("without_figures")
def test_a_report_removes_the_figures_of_an_earlier_one_that_it_does_not_have(
    isoloss: Isoloss, synthetic_laws: Path, tmp_path: Path
) -> None:
    figures, out = tmp_path / "report-figures", tmp_path / "report.html"
    figures.mkdir()
    for name in ("laws.png", "iso-loss.png", "trajectories.png", "answer.png", "mine.png"):
        (figures / name).write_bytes(b"old")
    assert isoloss("report", synthetic_laws, "--out", out).code == 0
    assert not (figures / "answer.png").exists()
    assert (figures / "mine.png").exists()
    assert (figures / "laws.png").read_bytes() != b"old"


@pytest.mark.usefixtures("without_figures")
def test_a_report_removes_nothing_from_a_folder_that_no_report_wrote(
    isoloss: Isoloss, synthetic_laws: Path, tmp_path: Path
) -> None:
    (tmp_path / "answer.png").write_bytes(b"mine")
    out = tmp_path / "report.html"
    assert isoloss("report", synthetic_laws, "--out", out, "--figures", tmp_path).code == 0
    assert (tmp_path / "answer.png").read_bytes() == b"mine"
