"""Reads documents from a corpus: Parquet, Arrow, JSON lines, JSON and text, plain, .gz or .zst, from
anything fsspec reads (also `hf://datasets/...`). Streams; errors name file and row."""

import gzip
import hashlib
import io
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import IO, Any, cast

import fsspec

from isoloss_contract import json_text
from isoloss_contract.records import DomainSource, preparation
from isoloss_contract.store import StoreUnavailable
from isoloss_trainer.hub import limit_silence
from isoloss_trainer.termination import BadData, TrainerError

MAX_DOCUMENT_BYTES = 256 * 2**20
"""A larger document suggests that the file is not what it claims to be."""
NUL_SHARE = 0.2
"""More NUL characters are no text: UTF-16 and UTF-32 without a mark pass for UTF-8, half or three quarters of it NUL."""
ROWS_AT_ONCE = 1024
MARK = "\ufeff".encode()
"""Byte order mark, which some editors and exports put before a text in UTF-8."""
MARKER = "_$folder$"
BESIDE = ("_", ".")
"""What names begin with of files and folders that Spark and others put next to data."""
BESIDE_ARROW = ("/dataset_info.json", "/state.json")
"""What `datasets` saves to disk beside the text."""
PACKED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"PK\x03\x04": "zip",
}
"""What compressed files begin with."""
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "s3": {"config_kwargs": {"response_checksum_validation": "when_required"}}
}
"""Of a file system. Files are read in ranges, and some S3 servers send the whole object's checksum with each."""
TAGS = ("ETag", "etag", "md5Hash", "blob_id", "mtime", "LastModified")
"""What storage says of a file that changes with its content: S3, Google Cloud Storage, the Hugging Face hub, volumes."""
END_BYTES = 4096
TOO_WIDE = "requires too much memory"
"""What zstd says of a frame whose window is above 128 MiB."""
STORAGE_LIBRARIES = ("botocore", "aiohttp", "huggingface_hub", "httpx")
"""Their OSErrors are storage errors even without an error number."""


class BadDocument(BadData):
    """A document that cannot be read, among others that can."""


Document = str | BadDocument


@dataclass(frozen=True)
class CorpusFile:
    """One input file; `format` and `compression` as preparation.endings finds them."""

    path: str
    bytes: int
    identity: str
    """Changes when the file's content changes, as reported by the storage (size, tag); on a volume, which has no tags, by
    size, time and both ends. Inodes and times of change say nothing there: some mounts number anew, and a mount with an
    fsGroup touches every file. A change between the ends that keeps the time is not seen."""
    format: str
    compression: str
    real: str
    """Its path, or where that leads as a link; the same for all names of one file."""

    @property
    def plain(self) -> str:
        """Its path without the ending of its compression."""
        return self.path[: len(self.path) - len(self.compression)]


def find_files(source: DomainSource) -> tuple[fsspec.AbstractFileSystem, list[CorpusFile]]:
    """The files behind a domain's glob, by path, except those that Spark and others put next to data, such as
    _SUCCESS, what is in _temporary/, or state.json beside .arrow. BadData if there are none or one has another format."""
    field = f"domains.{source.name}.uri"
    filesystem, pattern, found = _listed(source, field)
    folders, paths = [], []
    for path, info in sorted(found.items()):
        if _is_beside_data(path, pattern):
            continue
        if info.get("type") == "directory":
            folders.append(path.rstrip("/"))
        elif not (_is_marker(path, info, found) or _is_pipe(info)):
            paths.append(path)
    if any(path.endswith(".arrow") for path in paths):
        paths = [path for path in paths if not path.endswith(BESIDE_ARROW)]
    files = [_describe(filesystem, path, found[path], source) for path in paths]
    if not files:
        raise BadData("NoFiles", _why_none(source.uri, pattern, found), field)
    refuse_twice([(source, filesystem, files)])
    unread = [each for each in folders if not any(path.startswith(f"{each}/") for path in paths)]
    unread += _linked_folders(filesystem, pattern)
    if unread and _has_files(filesystem, unread[0]):
        raise BadData(
            "NoFiles",
            f"{source.uri} matches the folder {unread[0]}, whose files would be left out: name files "
            f"alone, or those in folders with /* or /** at the end; links to folders are not followed",
            field,
        )
    return filesystem, files


def _listed(
    source: DomainSource, field: str
) -> tuple[fsspec.AbstractFileSystem, str, Mapping[str, dict[str, Any]]]:
    """The file system, the pattern within it, and what matches."""
    scheme = source.uri.partition("://")[0]
    if scheme == "hf":
        limit_silence()
    try:
        options = OPTIONS.get(scheme, {})
        filesystem, pattern = fsspec.core.url_to_fs(
            source.uri, use_listings_cache=False, **options
        )
    except (ValueError, ImportError) as error:
        raise BadData("BadUri", f"{source.uri}: {error}", field) from error
    except OSError as error:  # of file systems that need a library or another file
        raise StoreUnavailable(f"{source.uri}: {error}") from error
    try:
        return filesystem, pattern, filesystem.glob(pattern, detail=True)
    except FileNotFoundError:
        return filesystem, pattern, {}
    except Exception as error:
        # Every file system has its own exceptions; none of them is about the corpus.
        raise StoreUnavailable(f"{source.uri}: {str(error)[:400]}") from error


def _linked_folders(filesystem: fsspec.AbstractFileSystem, pattern: str) -> list[str]:
    """Those below a folder that is searched, which are passed over."""
    above, searched, _ = pattern.partition("**")
    if not searched or "file" not in filesystem.protocol:
        return []
    found = filesystem.glob(f"{above}**", detail=True)
    links = [path for path, info in found.items() if info.get("islink") and filesystem.isdir(path)]
    return [path for path in links if not _is_beside_data(path, pattern)]


def refuse_twice(
    domains: Sequence[tuple[DomainSource, fsspec.AbstractFileSystem, Sequence[CorpusFile]]],
) -> None:
    """Raises BadData for text that would count twice. In one domain: a file beside its compressed form, as gzip --keep
    leaves it, an export in another format, or a link to it. In two domains: a file whose text both take."""
    seen: dict[tuple[str, ...], tuple[DomainSource, CorpusFile]] = {}
    for source, filesystem, files in domains:
        for file in files:
            here = [("", source.name, each) for each in (file.real, file.plain.rpartition(".")[0])]
            kind, field = type(filesystem).__name__, source.text_field
            for key in (*here, (kind, field, file.plain), (kind, field, file.real)):
                other, same = seen.setdefault(key, (source, file))
                if same is file:
                    continue
                message = (
                    f"{source.uri} matches {same.path} and {file.path}: one is usually the other, compressed, in another format or "
                    "as a link, and its documents would count twice. Name only one of them, or move one away"
                    if other is source
                    else f"domain {other.name} reads {same.path} and domain {source.name} {file.path}: its documents would "
                    "count twice. Change one of the patterns so that each file is in one domain"
                )
                raise BadData("NoFiles", message, f"domains.{source.name}.uri")


def _is_marker(path: str, info: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether an object stands for a folder: consoles make one of 0 bytes whose name ends in "/", EMR one that is called
    NAME_$folder$."""
    if path.endswith((MARKER, "/")) or str(info.get("name", "")).endswith("/"):
        return True
    is_empty = not info.get("size")
    return is_empty and any(other.startswith(f"{path}/") for other in found)


def _is_pipe(info: Mapping[str, Any]) -> bool:
    """Or a socket: reading one waits for ever. Links are called so, too."""
    return info.get("type") == "other" and not info.get("islink")


def _has_files(filesystem: fsspec.AbstractFileSystem, folder: str) -> bool:
    return any(info.get("size") for info in filesystem.find(folder, detail=True).values())


def _is_beside_data(path: str, pattern: str) -> bool:
    """Whether the file or a folder above it has such a name, unless a part of the pattern begins as it does."""
    meant = [part for part in pattern.split("/") if part.startswith(BESIDE)]
    return any(
        part.startswith(BESIDE) and not any(fnmatchcase(part, each) for each in meant)
        for part in path.split("/")
    )


def _why_none(uri: str, pattern: str, found: Mapping[str, dict[str, Any]]) -> str:
    beside = [path for path, info in found.items() if info.get("type") == "file"]
    if hidden := next((path for path in beside if _is_beside_data(path, pattern)), None):
        return (
            f"{uri} matches {hidden}, which is passed over, as all names that begin with _ or a dot: write "
            "that part of the name into the pattern if it is text"
        )
    if any(info.get("type") == "directory" for info in found.values()):
        return (
            f"{uri} matches folders and no file: write {uri.rstrip('/')}/* for the files in them"
        )
    braces = ": braces are not expanded, write * or [...]" if "{" in pattern else ""
    return f"nothing matches {uri}{braces}"


def _describe(
    filesystem: fsspec.AbstractFileSystem, path: str, info: dict[str, Any], source: DomainSource
) -> CorpusFile:
    kind, compression = preparation.endings(path)
    if not kind:
        ends_open = source.uri.endswith("*")
        leave_out = (
            "; what ends otherwise is left out by a pattern such as *.jsonl" if ends_open else ""
        )
        raise BadData(
            "UnknownFormat",
            f"{path}: expected {preparation.IN_WORDS}{preparation.known_other_form(path)}{leave_out}",
            f"domains.{source.name}.uri",
        )
    tags = [(name, info[name]) for name in TAGS if info.get(name)]
    name, tag = tags[0] if tags else ("", None)
    size = int(info.get("size") or 0)
    if name == "mtime":  # which may be set, as rsync and tar do
        with suppress(OSError):  # reading says what is wrong
            tag = f"{tag}:{_ends(filesystem, path, size)}"
    real = os.path.realpath(path) if info.get("islink") else path
    if "nlink" in info:  # on a volume, where a file may have several names
        with suppress(OSError):
            facts = os.stat(real)
            real = f"{facts.st_dev}:{facts.st_ino}" if facts.st_nlink > 1 else real
    return CorpusFile(path, size, f"{path}:{size}:{tag}", kind, compression, real)


def _ends(filesystem: fsspec.AbstractFileSystem, path: str, size: int) -> str:
    with filesystem.open(path, "rb") as file:
        start = file.read(END_BYTES)
        file.seek(max(0, size - END_BYTES))
        return hashlib.sha256(start + file.read(END_BYTES)).hexdigest()[:16]


def read_documents(
    filesystem: fsspec.AbstractFileSystem, file: CorpusFile, text_field: str
) -> Iterator[Document]:
    """The texts of a file in order, or why one cannot be read; a text file is one document. Errors name file, row
    and field. Raises BadData if the file itself cannot be read.

    `text_field` may be a path, such as `meta.text`, unless a field has that very name.
    """
    try:
        _check_packing(filesystem, file)
        with filesystem.open(file.path, "rb") as raw, _decompress(raw, file) as stream:
            yield from _READERS[file.format](stream, file, text_field)
    except (TrainerError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise BadData("NoFiles", f"{file.path}: disappeared while being read") from error
    except Exception as error:
        if TOO_WIDE in str(error):
            message = (
                "its window is above the 128 MiB that are read: pack it again with zstd --long=27"
            )
            raise BadData("UnreadableFile", f"{file.path}: {message}") from error
        message = f"{file.path}: {str(error)[:300]}"
        if isinstance(error, gzip.BadGzipFile):  # whose words have the bytes that Python prints
            message = f"{file.path}: is not gzip, damaged, or has something else behind it"
        if _is_of_content(error):
            again = ": copy or pack it again, or correct its name" if file.compression else ""
            raise BadData("UnreadableFile", message + again) from error
        if type(error).__module__ == "builtins" and not isinstance(error, OSError):
            raise  # a bug: no storage raises what Python itself does
        raise StoreUnavailable(message) from error


def _is_of_content(error: Exception) -> bool:
    """Whether an error while a file is read is about what is in it, and not about the storage."""
    module = type(error).__module__.partition(".")[0]
    if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
        # pyarrow also reports broken content as OSError; storage errors have errno set.
        away = error.errno is not None or isinstance(error, TimeoutError)
        return not away and module not in STORAGE_LIBRARIES
    broken = (EOFError, ValueError, ArithmeticError, gzip.BadGzipFile)
    return isinstance(error, broken) or module in ("zlib", "pyarrow")


def _check_packing(filesystem: fsspec.AbstractFileSystem, file: CorpusFile) -> None:
    """Raises BadData for a compressed file of 0 bytes, of which gzip and Arrow make an empty one: an upload failed; and for
    compressed content under a name that says nothing of it."""
    if file.compression and file.bytes:
        return
    # Some storage does not report sizes.
    with filesystem.open(file.path, "rb") as raw:
        start = raw.read(8)
    if file.compression and not start:
        message = f"{file.path}: is empty, without even a header of {file.compression}"
        raise BadData("UnreadableFile", message)
    kind = next((kind for mark, kind in PACKED.items() if start.startswith(mark)), "")
    if kind and not file.compression:
        raise BadData(
            "UnreadableFile",
            f"{file.path}: is compressed ({kind}), which its name does not say: call it {file.format}.gz or "
            f"{file.format}.zst, packed as such",
        )


def _decompress(raw: IO[bytes], file: CorpusFile) -> IO[bytes]:
    if file.compression == ".gz":
        return cast("IO[bytes]", gzip.open(raw, "rb"))
    if file.compression == ".zst":
        import pyarrow

        # python-zstandard silently ends at the end of a truncated file; Arrow reports it.
        stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), "zstd")
        return cast("IO[bytes]", io.BufferedReader(stream, 2**20))
    return raw


def _whole(stream: IO[bytes], file: CorpusFile, start: bytes = b"") -> bytes:
    """All of a file, of which `start` was read already."""
    content = start + stream.read(MAX_DOCUMENT_BYTES + 1)
    if len(content) > MAX_DOCUMENT_BYTES:
        raise BadData("DocumentTooLarge", f"{file.path}: larger than {MAX_DOCUMENT_BYTES} bytes")
    return content


def _decode(content: bytes, where: str) -> str:
    """Invalid UTF-8 is not replaced: it means that the document is something else."""
    try:
        return _of_characters(content.decode(), where)
    except UnicodeDecodeError as error:
        message = f"{where}: not UTF-8 at byte {error.start}: save it as UTF-8"
        raise BadDocument("NotUtf8", message) from error


def _of_characters(text: str, where: str) -> str:
    """The text. Raises BadDocument for one of NULs."""
    nuls = text.count("\0")
    if nuls > NUL_SHARE * len(text):
        message = f"{nuls / len(text):.0%} of its characters are NUL, as in UTF-16 without a mark"
        raise BadDocument("NotUtf8", f"{where}: {message}: save it as UTF-8")
    return text


def _or_bad(read: Callable[..., str], *arguments: Any) -> Document:
    try:
        return read(*arguments)
    except BadDocument as error:
        return error


def _text_file(stream: IO[bytes], file: CorpusFile, _field: str) -> Iterator[Document]:
    yield _or_bad(_decode, _whole(stream, file).removeprefix(MARK), file.path)


def _json_file(stream: IO[bytes], file: CorpusFile, field: str) -> Iterator[Document]:
    """JSON lines, a list of objects, or one object, under either name."""
    buffered: Any = io.BufferedReader(stream)
    start = _first_line(buffered)
    line = start.removeprefix(MARK).strip()
    if line.startswith(b"["):
        yield from _json_list(_whole(buffered, file, start), file, field)
        return
    if not _is_json(line):
        # One object over several lines; or lines, of which the first is broken.
        start += buffered.read(MAX_DOCUMENT_BYTES) + buffered.readline(MAX_DOCUMENT_BYTES)
        whole = start.removeprefix(MARK)
        if _is_json(whole):
            yield _or_bad(_text_of_line, whole, field, f"{file.path}: row 1")
            return
    lines = itertools.chain(_lines(io.BytesIO(start)), _lines(buffered))
    yield from _of_lines(lines, file, field)


def _json_list(content: bytes, file: CorpusFile, field: str) -> Iterator[Document]:
    try:
        rows = json_text.read_json(_decode(content.removeprefix(MARK), file.path))
    except (ValueError, RecursionError) as error:
        raise BadData("BadJson", f"{file.path}: {json_text.why_unread(error)}") from error
    for number, row in enumerate(rows, 1):
        yield _or_bad(_text_of, row, field, f"{file.path}: row {number}")


def _first_line(stream: IO[bytes]) -> bytes:
    """With the blank lines before it."""
    found = []
    for line in _lines(stream):
        found.append(line)
        if line.removeprefix(MARK).strip():
            break
    return b"".join(found)


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    while line := stream.readline(MAX_DOCUMENT_BYTES + 1):
        yield line


def _of_lines(lines: Iterator[bytes], file: CorpusFile, field: str) -> Iterator[Document]:
    for number, line in enumerate(lines, 1):
        where = f"{file.path}: row {number}"
        if len(line) > MAX_DOCUMENT_BYTES:
            raise BadData("DocumentTooLarge", f"{where}: larger than {MAX_DOCUMENT_BYTES} bytes")
        text = line.removeprefix(MARK) if number == 1 else line
        if text.strip():
            yield _or_bad(_text_of_line, text, field, where)


def _text_of_line(line: bytes, field: str, where: str) -> str:
    try:
        text = _decode(line, where)
        # The careful reader takes half as long again: only where a key may be there twice, or in escapes.
        may_repeat = "\\u" in text or text.count(f'{field.rpartition(".")[2]}"') > 1
        row = json_text.read_json(text) if may_repeat else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadDocument("BadJson", f"{where}: {json_text.why_unread(error)}") from error
    return _text_of(row, field, where)


def _text_of(row: Any, field: str, where: str) -> str:
    if not isinstance(row, dict):
        raise BadDocument("BadRow", f"{where}: not an object")
    found = row
    for name in [field] if field in row else field.split("."):
        if not isinstance(found, dict):
            kind = f"field {field.partition(f'.{name}')[0]!r} is {json_text.kind_of(found)}"
            raise BadDocument("TextFieldMissing", f"{where}: no field {field!r}: {kind}")
        if name not in found:
            fields = ", ".join(sorted(row)[:10])
            raise BadDocument("TextFieldMissing", f"{where}: no field {field!r}; fields: {fields}")
        found = found[name]
    return _checked_text(found, field, where)


def _checked_text(value: Any, field: str, where: str) -> str:
    if isinstance(value, bytes):  # as Spark, DuckDB and ClickHouse may write text to Parquet
        return _decode(value, where)
    if not isinstance(value, str):
        kind = json_text.kind_of(value)
        raise BadDocument("TextFieldMissing", f"{where}: field {field!r} is {kind}, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadDocument("NotUtf8", f"{where}: lone surrogate at {error.start}") from error
    return _of_characters(value, where)


def _parquet(stream: IO[bytes], file: CorpusFile, field: str) -> Iterator[Document]:
    import pyarrow.parquet

    seekable = stream if not file.compression else io.BytesIO(_whole(stream, file))
    table = pyarrow.parquet.ParquetFile(seekable)
    path = _path(table.schema_arrow, field, file)
    batches = table.iter_batches(batch_size=ROWS_AT_ONCE, columns=[field])
    yield from _rows(batches, path, field, file)


def _arrow(stream: IO[bytes], file: CorpusFile, field: str) -> Iterator[Document]:
    """Both IPC forms: the file form, and the stream form that `datasets` writes."""
    import pyarrow.ipc

    buffered = io.BufferedReader(stream)  # type: ignore[type-var]
    if buffered.peek(6)[:6] == b"ARROW1":
        seekable = stream if not file.compression else io.BytesIO(_whole(buffered, file))
        seekable.seek(0)
        reader = pyarrow.ipc.open_file(seekable)
        path = _path(reader.schema, field, file)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        yield from _rows(batches, path, field, file)
        return
    reader = pyarrow.ipc.open_stream(buffered)
    yield from _rows(reader, _path(reader.schema, field, file), field, file)


def _rows(batches: Any, path: Sequence[str], field: str, file: CorpusFile) -> Iterator[Document]:
    number = 0
    for batch in batches:
        for cell in batch.column(path[0]):
            number += 1
            yield _or_bad(_text_of_cell, cell, path, field, f"{file.path}: row {number}")


def _text_of_cell(cell: Any, path: Sequence[str], field: str, where: str) -> str:
    try:
        value = cell.as_py()
    except UnicodeDecodeError as error:  # a column of text may hold any bytes
        raise BadDocument("NotUtf8", f"{where}: not UTF-8 at byte {error.start}") from error
    for name in path[1:]:
        value = None if value is None else value[name]
    return _checked_text(value, field, where)


def _path(schema: Any, field: str, file: CorpusFile) -> list[str]:
    """From a pyarrow schema down to `field`; BadData if it leads nowhere."""
    if (times := schema.names.count(field)) > 1:
        raise BadData("TextFieldMissing", f"{file.path}: {times} columns are called {field!r}")
    if times:
        return [field]
    kind: Any = schema
    for name in field.split("."):
        # Schemas and structs have it; what has no fields does not.
        index = kind.get_field_index(name) if hasattr(kind, "get_field_index") else -1
        if index < 0:
            fields = ", ".join(sorted(schema.names)[:10])
            raise BadData(
                "TextFieldMissing", f"{file.path}: row 1: no field {field!r}; fields: {fields}"
            )
        kind = kind.field(index).type
    return field.split(".")


_READERS = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".jsonl": _json_file,
    ".json": _json_file,
    ".txt": _text_file,
}
