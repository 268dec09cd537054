"""Checkpoints and tokenizers by their name on the Hugging Face hub: `hf://owner/name`, with a
revision as `hf://owner/name@revision`."""

from collections.abc import Sequence
from pathlib import Path

from isoloss_contract.store import Store, StoreUnavailable
from isoloss_trainer.shards import PATIENT
from isoloss_trainer.termination import BadData

SCHEME = "hf://"


def is_hub_name(uri: str) -> bool:
    """Whether `uri` names a model repository on the hub."""
    return uri.startswith(SCHEME) and not uri.startswith(f"{SCHEME}datasets/")


def directory(uri: str, patterns: Sequence[str]) -> Store:
    """The folder at `uri`, or of a repository on the hub a local one. Raises as `hub_snapshot`."""
    folder = f"file://{hub_snapshot(uri, patterns)}" if is_hub_name(uri) else uri
    return Store(folder, PATIENT, follow_links=True)  # a snapshot of the hub consists of links


def hub_snapshot(uri: str, patterns: Sequence[str]) -> Path:
    """A local folder with the files of a repository that match `patterns`.

    HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE are the hub's own variables. Raises
    BadData(NotOnHub) if the repository does not exist or is not readable, StoreUnavailable if
    the hub cannot be reached and the files are not cached.
    """
    from huggingface_hub import errors, snapshot_download

    name, _, revision = uri.removeprefix(SCHEME).partition("@")
    absent = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError)
    try:
        folder = snapshot_download(name, revision=revision or None, allow_patterns=list(patterns))
    except (*absent, errors.HFValidationError) as error:
        reason = str(error).strip().splitlines()[0][:300]
        message = f"{uri}: no such repository or revision on the hub, or no permission: {reason}"
        raise BadData("NotOnHub", message) from error
    except Exception as error:
        # The hub's own errors, its HTTP library's and the disk's share no base class.
        detail = str(error).strip()[:300]
        raise StoreUnavailable(f"{uri}: the hub cannot be reached: {detail}") from error
    return Path(folder)
