"""What the Dockerfiles and their tests run, without building anything: lock parts, slimming, SBOM, disk."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import default_environment

from images.__main__ import main as build_from_command_line
from images.lock import read_lock
from images.notices import Notice, installed_notices, notices
from images.sbom import bill_of_materials
from images.slim import main as slim
from tests.images.conftest import disk_used

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "locks").glob("*.txt"))
HASHES = "--hash=sha256:" + "a" * 64 + " \\\n    --hash=sha256:" + "b" * 64
ENVIRONMENT = {key: str(value) for key, value in default_environment().items()}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_line_of_a_lock_is_read(path: Path) -> None:
    pins = list(read_lock(path.read_text()))
    assert sum(pin.text.count("--hash=") for pin in pins) == path.read_text().count("--hash=")
    assert sum(len(pin.hashes) for pin in pins) == path.read_text().count("--hash=")


def test_a_pin_without_a_hash_or_an_exact_version_is_refused() -> None:
    with pytest.raises(ValueError, match="numpy: a lock needs one exact version and its hashes"):
        list(read_lock("numpy==2.4.6\n"))
    with pytest.raises(ValueError, match="numpy: a lock needs one exact version"):
        list(read_lock(f"numpy>=2.4.6 \\\n    {HASHES}\n"))


def test_torch_and_what_its_cuda_build_brings_are_one_part() -> None:
    pins = list(read_lock((ROOT / "locks" / "trainer.txt").read_text()))
    torch = {pin.name for pin in pins if pin.belongs_to_torch}
    assert {"torch", "triton"} <= torch
    assert not {"transformers", "tokenizers", "numpy"} & torch
    assert all(
        name in torch for name in {pin.name for pin in pins} if name.startswith(("nvidia", "cuda"))
    )


def test_the_bill_names_the_packages_of_this_platform_alone() -> None:
    lock = (
        f"numpy==2.4.6 ; sys_platform == 'linux' \\\n    {HASHES}\n"
        f"colorama==0.4.6 ; sys_platform == 'win32' \\\n    {HASHES}\n"
    )
    licences = {"numpy": "BSD-3-Clause", "colorama": ""}
    bill = bill_of_materials(
        "isoloss-operator", "1", lock, {**ENVIRONMENT, "sys_platform": "linux"}, licences
    )
    (component,) = bill["components"]
    assert component["purl"] == "pkg:pypi/numpy@2.4.6"
    assert component["licenses"] == [{"license": {"name": "BSD-3-Clause"}}]
    hashes = component["externalReferences"][0]["hashes"]
    assert [each["content"] for each in hashes] == ["a" * 64, "b" * 64]
    assert bill["dependencies"][0]["dependsOn"] == [component["bom-ref"]]


def test_the_bill_of_a_lock_is_always_the_same() -> None:
    lock = (ROOT / "locks" / "operator.txt").read_text()
    first, second = (
        bill_of_materials("a", "1", lock, ENVIRONMENT, {"numpy": ""}) for _ in range(2)
    )
    assert json.dumps(first) == json.dumps(second)
    assert {each["name"] for each in first["components"]} == {"numpy"}, "nothing else is installed"
    other = bill_of_materials("a", "2", lock, ENVIRONMENT, {"numpy": ""})
    assert other["serialNumber"] != first["serialNumber"]


def test_slimming_keeps_code_data_and_licences(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.13" / "site-packages"
    kept = (
        "numpy/__init__.py",
        "numpy/data.json",
        "numpy-2.4.6.dist-info/licenses/LICENSE.txt",
        "botocore/data/endpoints.json",
        "botocore/data/s3/2006-03-01/service-2.json.gz",
    )
    removed = (
        "numpy/tests/test_a.py",
        "numpy/__init__.pyi",
        "numpy/_core/include/numpy/a.h",
        "botocore/data/ec2/2016-11-15/service-2.json.gz",
        "kubernetes/aio/client.py",
        "pyarrow/__init__.py",
        "pyarrow-26.0.1.dist-info/METADATA",
    )
    for name in kept + removed:
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text("")
    slim(str(tmp_path))
    assert {str(p.relative_to(packages)) for p in packages.rglob("*") if p.is_file()} == set(kept)


@pytest.mark.parametrize("name", ["operator", "trainer"])
def test_the_notices_have_a_licence_for_every_package_of_the_lock(name: str) -> None:
    """Of those that this environment has installed, which are nearly all of both images'."""
    lock = (ROOT / "locks" / f"{name}.txt").read_text()
    installed = installed_notices([sys.prefix])
    text = notices(name, lock, ENVIRONMENT, installed)
    pins = [p for p in read_lock(lock) if p.applies(ENVIRONMENT) and p.name in installed]
    wanted = {pin.name for pin in pins}
    assert len(wanted) > 30
    # torch's own are of another layer; cuda-toolkit, which is empty, states none.
    own = (pin.name for pin in pins if not pin.belongs_to_torch)
    silent = [each for each in own if not installed[each].stated and not installed[each].texts]
    assert silent == []
    for each in wanted:
        assert f"\n{each} " in text
    assert "Permission is hereby granted, free of charge" in text


def test_a_package_that_is_not_installed_has_no_notice_and_torchs_have_their_folder_named() -> (
    None
):
    lock = f"numpy==2.4.6 \\\n    {HASHES}\ntorch==2.12.0 \\\n    {HASHES}\nsix==1.0 \\\n    {HASHES}\n"
    text = notices("trainer", lock, ENVIRONMENT, {"six": Notice("MIT", ("Be kind.",))})
    assert "numpy" not in text
    assert "six 1.0\nMIT\n\nBe kind." in text
    assert "torch 2.12.0\nsee its .dist-info folder" in text


def test_files_that_a_build_takes_away_while_they_are_counted_take_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("layers/kept", "scratch/gone"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"x" * 10_000)
    walk = os.walk

    def walk_beside_a_build(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for parent, folders, names in walk(folder):
            if "gone" in names:
                Path(parent, "gone").unlink()
            yield parent, folders, names

    monkeypatch.setattr(os, "walk", walk_beside_a_build)
    assert disk_used(tmp_path) == 512 * (tmp_path / "layers" / "kept").stat().st_blocks > 0
    assert disk_used(tmp_path / "not made yet") == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--build-arg", "FOO"], "argument --build-arg: FOO: write NAME=VALUE"),
        (["--build-arg", "=1"], "argument --build-arg: =1: write NAME=VALUE"),
        (["operater"], "no image operater: choose from operator, trainer"),
    ],
    ids=["no value", "no name", "no image"],
)
def test_what_cannot_be_built_is_a_usage_error(
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["images", *arguments])
    with pytest.raises(SystemExit) as ended:
        build_from_command_line()
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
