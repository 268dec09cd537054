"""What `isoloss init` was asked for: the options, checked and completed. Every error names its option."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError

from isoloss.errors import BadInput
from isoloss_contract.records import in_words, preparation
from isoloss_contract.store import NotFound, Store, StoreError
from isoloss_operator.api.fields import DnsLabel, FolderUri, StoreUri
from isoloss_operator.commands.nearest_family import Nearest, nearest
from isoloss_operator.planning import models

PricePerHour = Annotated[
    float | None,
    typer.Option(
        metavar="PRICE", help="Of one accelerator, in any currency: adds what the hours cost."
    ),
]
LONGEST_NAME = 40
"""Longest name of a sweep: the names of what belongs to it are longer."""
USUAL_SEQUENCE = 8192
"""Tokens, if the checkpoint has as many positions."""
FILE_NAME = re.compile(r"[*?\[]|\.\w+$")
"""What the last part of a corpus URI has that names files rather than a folder."""
_FOLDER: TypeAdapter[str] = TypeAdapter(FolderUri)
_URI: TypeAdapter[str] = TypeAdapter(StoreUri)
_LABEL: TypeAdapter[str] = TypeAdapter(DnsLabel)


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint that is to be continued."""

    uri: str
    config: dict[str, Any]
    """Its config.json, or the part of it that is about text; of the nearest family's if it has no proxies of its own."""
    nearest: Nearest | None = None
    """None: proxies are of its own family."""

    @property
    def active(self) -> int:
        """Active parameters, output head included."""
        return models.parameter_counts(self.config).active

    @property
    def total(self) -> int:
        """All parameters."""
        return models.parameter_counts(self.config).total


@dataclass(frozen=True)
class CorpusPart:
    """One domain."""

    name: str
    uri: str
    is_folder: bool
    """Whether it was given as a folder, of which all files are read."""


def folder(option: str, uri: str) -> str:
    """The URI without a slash at its end. Raises BadInput unless it names a folder of a store."""
    return _checked(option, uri.rstrip("/"), _FOLDER)


def read_checkpoint(uri: str) -> Checkpoint:
    """Raises BadInput if its config.json cannot be read, or is no causal language model's."""
    uri = folder("--checkpoint", uri)
    other = None
    try:
        whole = Store(uri, follow_links=True).read_json_object("config.json")
        config = models.text_model(whole)
        if str(config.get("model_type")) not in models.FAMILIES:
            other = nearest(whole)
            config = other.config
        config = models.completed(config)
        models.parameter_counts(config)
    except NotFound as error:
        raise BadInput(
            f"--checkpoint: {uri} has no config.json: give the folder of a checkpoint in Hugging Face format"
        ) from error
    except StoreError as error:
        raise BadInput(f"--checkpoint: {error}") from error
    except models.UnsupportedModel as error:
        raise BadInput(f"--checkpoint: {uri}/config.json: {error}") from error
    if why := models.measuring_refusal(whole, USUAL_SEQUENCE):
        raise BadInput(f"--checkpoint: {uri}/config.json: {why}")
    return Checkpoint(uri, config, other)


def tokenizer(given: str | None, checkpoint: str) -> str:
    """The folder given, else the checkpoint's. Raises BadInput if it has no tokenizer.json."""
    uri = checkpoint if given is None else folder("--tokenizer", given)
    try:
        if Store(uri, follow_links=True).exists("tokenizer.json"):
            return uri
    except StoreError as error:
        raise BadInput(f"--tokenizer: {error}") from error
    raise BadInput(f"--tokenizer: {uri} has no tokenizer.json: give the folder that has it")


def sequence_length(given: int | None, config: dict[str, Any]) -> int:
    """As given, else 8,192 or what the checkpoint has positions for. Raises BadInput for more than these."""
    positions = config.get("max_position_embeddings")
    if isinstance(positions, bool) or not isinstance(positions, int) or positions < 8:
        raise BadInput(
            f"--checkpoint: config.json: max_position_embeddings: must be an integer of 8 or more, not {positions!r}"
        )
    if given is not None and given > positions:
        raise BadInput(
            f"--sequence-length: {given} is more than the {positions} positions of the checkpoint"
        )
    return given or min(USUAL_SEQUENCE, positions)


def corpus_parts(given: Sequence[str]) -> tuple[CorpusPart, ...]:
    """A domain for each URI, named by its last folder or as NAME=URI says. Raises BadInput."""
    parts: list[CorpusPart] = []
    for text in given:
        name, separator, uri = text.partition("=")
        if not separator or "://" in name:
            name, uri = "", text
        is_folder = uri.endswith("/") or not FILE_NAME.search(PurePosixPath(uri).name)
        uri = _checked("--corpus", f"{uri.rstrip('/')}/*" if is_folder else uri, _URI)
        _require_documents(uri)
        if uri in {part.uri for part in parts}:
            raise BadInput(f"--corpus: {uri} is given twice")
        if name:
            _checked("--corpus", name, _LABEL)
        taken = {part.name for part in parts}
        if name in taken:
            raise BadInput(f"--corpus: {name} is the name of two")
        parts.append(CorpusPart(name or _free(_name_of(uri), taken), uri, is_folder))
    return tuple(parts)


def _require_documents(uri: str) -> None:
    """Raises BadInput if no file that the pattern matches can be read."""
    if preparation.may_be_read(uri):
        return
    raise BadInput(
        f"--corpus: {uri}: no documents are read from such files: give {preparation.IN_WORDS}, or a folder with / at "
        f"its end{preparation.known_other_form(uri)}"
    )


def name_of(option: str, given: str | None, checkpoint: str) -> str:
    """As given, else made of the checkpoint's last folder. Raises BadInput for what Kubernetes refuses."""
    if given is not None:
        return _checked(option, given, _LABEL)
    return _as_label(PurePosixPath(checkpoint.partition("://")[2]).name) or "sweep"


def _name_of(uri: str) -> str:
    """Name of the last folder of a corpus URI, or of the file if there is no folder."""
    segments = [each for each in uri.partition("://")[2].split("/") if each]
    plain = [each for each in segments if not FILE_NAME.search(each)]
    return _as_label((plain or segments)[-1].split(".")[0]) or "corpus"


def _free(name: str, taken: set[str]) -> str:
    """The name, numbered if another has it."""
    if name not in taken:
        return name
    return next(found for n in range(2, 100) if (found := f"{name}-{n}") not in taken)


def _as_label(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:LONGEST_NAME].strip("-")


def _checked(option: str, value: str, expected: TypeAdapter[str]) -> str:
    try:
        return expected.validate_python(value)
    except ValidationError as error:
        raise BadInput(f"{option}: {value}: {_in_words(value, expected, error)}") from error


def _in_words(value: str, expected: TypeAdapter[str], error: ValidationError) -> str:
    if expected is _LABEL:
        return "must be at most 63 lower-case letters, digits and dashes"
    if not value.startswith(("s3://", "gs://", "file://")):
        return (
            "must be where pods can read it: s3://BUCKET/PATH, gs://BUCKET/PATH, or file:///PATH on a volume that "
            "all of them mount; copy it there first"
        )
    return in_words(error.errors(include_url=False)[0])
