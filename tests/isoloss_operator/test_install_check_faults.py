"""What `helm test` says where an API server or a storage is not there."""

import json
from collections.abc import Iterator
from pathlib import Path

import gcsfs
import pytest
from kubernetes.client import Configuration

from isoloss_operator import install_check
from isoloss_operator.settings import Settings, read_settings
from tests.support.http_server import serving


@pytest.fixture
def no_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Google Cloud Storage without any."""
    error = {"code": 404, "message": "The specified bucket does not exist."}
    body = json.dumps({"error": error}).encode()
    with serving(lambda _: (404, {}, body)) as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        gcsfs.GCSFileSystem.clear_instance_cache()
        yield
        gcsfs.GCSFileSystem.clear_instance_cache()


def environment(*prefixes: str) -> dict[str, str]:
    allowed = json.dumps({"*": prefixes})
    return {"ISOLOSS_TRAINER_IMAGE": "any", "ISOLOSS_ALLOWED_STORAGE": allowed}


def settings(*prefixes: str) -> Settings:
    return read_settings(environment(*prefixes))


@pytest.mark.usefixtures("no_bucket")
def test_a_bucket_of_google_that_is_not_there_is_named() -> None:
    (problem,) = install_check.silent_storage(settings("gs://misspelt/x"))
    assert problem.startswith("storage gs://misspelt/x: ")
    assert problem.endswith("there is no bucket misspelt")


def test_a_volume_that_is_not_mounted_is_named(tmp_path: Path) -> None:
    allowed = settings(f"file://{tmp_path}", f"file://{tmp_path}/nowhere")
    (problem,) = install_check.silent_storage(allowed)
    assert problem == f"storage file://{tmp_path}/nowhere: there is no such folder"


@pytest.mark.parametrize("arguments", [["operator"], ["sweep", "research"]])
def test_an_api_server_that_is_not_there_is_a_problem_and_the_storage_is_asked(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment(f"file://{tmp_path}/nowhere").items():
        monkeypatch.setenv(name, value)
    nobody = Configuration(host="http://127.0.0.1:1")
    monkeypatch.setattr(install_check, "load_configuration", lambda _: nobody)
    assert install_check.main(arguments) == 1
    printed = capsys.readouterr().out
    assert "the API server cannot be asked: " in printed
    assert ("nowhere: there is no such folder" in printed) == (arguments == ["operator"])
