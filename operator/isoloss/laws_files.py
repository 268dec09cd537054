"""Laws as files: written by `isoloss fit` and by the operator, read by predictions and reports."""

import contextlib
import json
import os
import secrets
import stat
from pathlib import Path

from isoloss.errors import BadInput, why_unreadable
from isoloss.laws import BadLaws, Laws, laws_from_json, laws_to_json
from isoloss.tables import is_table
from isoloss_contract.json_text import RepeatedKey, read_json

MAX_LAWS_BYTES = 64 * 2**20


def write_laws(laws: Laws, path: Path | str) -> None:
    """Write laws as JSON. Raises BadInput if the file cannot be written.

    >>> isoloss.write_laws(laws, "laws.json")
    """
    write_file(Path(path), json.dumps(laws_to_json(laws), allow_nan=False))


TAKEN = "give the file that isoloss fit writes with --out, or save a table as CSV or Parquet"


def read_laws(source: str | Path) -> Laws:
    """Laws from a file, or from a sweep in the store by its URI. Raises BadInput naming the source.

    >>> laws = isoloss.read_laws("laws.json")
    """
    if "://" in str(source):
        return _stored(str(source))
    if is_table(str(source)):
        raise BadInput(
            f"{source}: holds runs: fit laws to it first: isoloss fit {source} --out laws.json"
        )
    text = _local(str(source))
    try:
        document = read_json(text)
        if isinstance(document, list):
            raise BadLaws(f"a list, which holds no laws: {TAKEN}")
        return laws_from_json(document)
    except (BadLaws, RepeatedKey) as error:
        raise BadInput(f"{source}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source}: not JSON: {TAKEN}") from error


def _stored(source: str) -> Laws:
    """The laws of a sweep. Raises BadInput."""
    # Not above: a prediction from a local file needs none of the store's records.
    from isoloss.stored_sweeps import open_sweep, stored_laws
    from isoloss_contract.store import NotFound, StoreError

    sweep = open_sweep(source)
    try:
        return stored_laws(sweep)
    except NotFound as error:
        raise BadInput(f"{sweep.uri}: no laws yet; fit its runs with isoloss fit") from error
    except StoreError as error:
        raise BadInput(str(error)) from error


def _local(source: str) -> str:
    """The text of a file. Raises BadInput."""
    path = Path(source)
    try:
        if path.stat().st_size > MAX_LAWS_BYTES:
            raise BadInput(f"{source}: larger than {MAX_LAWS_BYTES} bytes")
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{source}: {why_unreadable(path, error)}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{source}: not UTF-8 text: {TAKEN}") from error


def write_file(path: Path, content: str | bytes) -> None:
    """Write a result, making its folder: all of it, or nothing if it cannot be finished.

    Whoever reads the file meanwhile has the old one. Links stay links, and a file keeps its permissions. Pipes and
    devices are written to as they are. Raises BadInput if the file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if _is_stream(path) or not _may_be_replaced(path):
            path.write_bytes(data)
        else:
            _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        named = ": name a file" if path.is_dir() else ""
        raise BadInput(f"{path}: {error.strerror or 'cannot be written'}{named}") from error


def _is_stream(path: Path) -> bool:
    """Whether this is a pipe, a device or an open file, which keeps its readers only if it is not replaced."""
    opened = str(path).startswith(("/dev/std", "/dev/fd/", "/proc/"))
    return opened or (path.exists() and not path.is_file())


def _may_be_replaced(path: Path) -> bool:
    """Whether its folder takes another file, and the one that is there, if any, may be written to and is no mount."""
    folder = os.path.dirname(os.path.realpath(path))
    is_free = not path.exists() or (os.access(path, os.W_OK) and not os.path.ismount(path))
    return is_free and os.access(folder, os.W_OK | os.X_OK)


def _replace(path: Path, data: bytes) -> None:
    """Put a new file in the place of this one at once."""
    old = path.stat() if path.exists() else None
    # Not tempfile's: its files are readable by their owner alone, whatever the umask is.
    unfinished = path.with_name(f".isoloss-{secrets.token_hex(8)}.tmp")
    try:
        with unfinished.open("xb") as file:
            file.write(data)
        if old is not None:
            _take_over(unfinished, old)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _take_over(path: Path, old: os.stat_result) -> None:
    """Owner, where only root may give files away, and permissions."""
    with contextlib.suppress(PermissionError):
        os.chown(path, old.st_uid, old.st_gid)
    path.chmod(stat.S_IMODE(old.st_mode))
