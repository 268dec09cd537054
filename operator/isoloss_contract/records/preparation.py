"""The tokenised corpus: the task that writes it and the manifest that describes it."""

from typing import Final, Literal

from pydantic import Field

from isoloss_contract.records import base


class DomainSource(base.Record):
    """One domain of the corpus: where its documents are and which field holds the text."""

    name: base.Name
    uri: base.Uri
    """A glob over .parquet, .jsonl, .json, .arrow or .txt files, plain, .gz or .zst."""
    text_field: str = Field(min_length=1, max_length=253)
    """Or a path to it, such as `meta.text`."""


class PrepareConfig(base.Record):
    """Everything that determines the tokenised corpus, except the bytes behind the URIs."""

    contract_version: Literal[1] = 1
    tokenizer: base.Uri
    """Directory in the store in Hugging Face format (tokenizer.json)."""
    sequence_length: int = Field(ge=8, le=1_048_576)
    domains: tuple[DomainSource, ...] = Field(min_length=1, max_length=64)
    validation_documents_per_thousand: int = Field(ge=1, le=500)
    bad_documents: Literal["Skip", "Refuse"] = "Skip"
    """Whether documents that cannot be read are skipped, as long as they are few."""
    sources_stamp: str = Field(default="", max_length=64)
    """DataManifest.sources_stamp of the corpus; empty: of the first one that was prepared from these URIs."""

    @property
    def key(self) -> str:
        """Names the folder of the prepared data; the manifest's digest names its content."""
        return base.record_key(self)


class PrepareTask(base.Record):
    """The complete input of a prepare pod."""

    kind: Literal["prepare"] = "prepare"
    config: PrepareConfig
    store_uri: base.Uri
    pods: int = Field(default=1, ge=1, le=1000)
    """Number of the Job's pods: each takes every so many-th unit of input files, and the first one puts them
    together."""
    sweep_uid: str = Field(default="", max_length=64)
    """A sweep that has no corpus yet: the one of `config` is its own if the files behind the URIs are still those that it
    was prepared from, else they are prepared under their stamp. SweepCorpus tells it which. Empty: that of `config`."""


class Shard(base.Report):
    """One file of a little-endian uint32 per token: the tokens, unless a field's description says
    otherwise. Documents end with the tokenizer's end token."""

    path: str = Field(pattern=r"^[A-Za-z0-9._/-]{1,512}$")
    """Relative to the manifest's folder."""
    tokens: base.Tokens
    sha256: base.Digest


class HashedShard(Shard):
    """Training tokens, of which a sequence can be read and trusted without the others."""

    windows_sha256: base.Digest
    """Digest of the file PATH.windows, which has a hash of every training sequence in the shard."""


class DomainData(base.Report):
    """The tokenised documents of one domain."""

    name: base.Name
    training: tuple[HashedShard, ...]
    training_documents: int = Field(ge=0)
    training_tokens: base.Tokens
    training_bytes: int = Field(ge=0)
    """UTF-8 bytes of the text behind the training tokens."""
    validation: Shard
    validation_documents: int = Field(ge=0)
    validation_tokens: base.Tokens
    validation_bytes: int = Field(ge=0)
    validation_lengths: Shard
    """Bytes of text that each validation token stands for, the end of a document counting as one."""
    bad_documents: int = Field(default=0, ge=0)
    """Documents that could not be read and were skipped."""
    near_duplicates: int = Field(default=0, ge=0)
    """Validation documents with a near-identical twin among the training documents."""


TWINS_SHARE = 0.03
"""Share of the held-out documents: if more have twins, losses are too low to compare."""
COPIES_SHARE, SURE = 0.2, 5.0
"""Share of all documents, and standard errors: if more are copies of others, files are probably there twice."""


class DataManifest(base.Report):
    """Written last by prepare: the tokenised corpus is complete exactly when this exists."""

    contract_version: Literal[1] = 1
    prepare_key: base.Digest
    digest: base.Digest
    """Hash of tokenizer digest, sequence length and every shard's hash; part of each point's key."""
    tokenizer_digest: base.Digest
    vocabulary_size: int = Field(ge=2)
    end_token: int = Field(ge=0)
    sequence_length: int = Field(ge=8)
    sources_stamp: str = Field(default="", max_length=64)
    """Hash of the tokenizer's digest and of the names, sizes and ETags of the input files, as they were listed; empty: an
    earlier version wrote none."""
    domains: tuple[DomainData, ...] = Field(min_length=1)

    def remarks(self, per_thousand: int) -> list[str]:
        """Sentences on what people should know of the corpus, of which so many documents were held out; none of most."""
        found = []
        for domain in self.domains:
            # Of documents that are copies one is kept, and their hash holds out all or none.
            expected = domain.training_documents * per_thousand / (1000 - per_thousand)
            copies = 1 - domain.validation_documents / max(1.0, expected)
            if copies > max(COPIES_SHARE, SURE / max(1.0, expected) ** 0.5):
                found.append(
                    f"About {copies:.0%} of the documents of {domain.name} are copies of others: if files are there twice, as caches, "
                    "older versions of a table or downloads, leave those out."
                )
            share = domain.near_duplicates / max(1, domain.validation_documents)
            if share > TWINS_SHARE:
                found.append(
                    f"Of the held-out documents of {domain.name} {share:.0%} have a near-identical one among the "
                    "training documents: losses there are too low."
                )
            if domain.bad_documents:
                documents = "document" if domain.bad_documents == 1 else "documents"
                found.append(
                    f"Skipped {domain.bad_documents} {documents} of {domain.name} that cannot be read."
                )
        return found


class SweepCorpus(base.Report):
    """Written by the prepare Job of a sweep: which corpus was prepared from the files behind its URIs as they are."""

    prepare_key: base.Digest
    """Key of the folder with the corpus."""
    sources_stamp: str = Field(default="", max_length=64)
    """As in its manifest."""


FORMATS: Final = (".parquet", ".jsonl", ".json", ".arrow", ".txt")
COMPRESSIONS: Final = (".gz", ".zst")
CONVERTED: Final = {
    "mds": "MDS of MosaicML Streaming",
    "bin": "tokens of Megatron-LM, or samples of LitData",
    "idx": "the index of Megatron-LM's tokens",
    "lance": "Lance",
    "wet": "web pages as text (WET)",
    "warc": "web pages as they were crawled (WARC)",
    "tar": "an archive, such as WebDataset's",
    "tgz": "an archive, such as WebDataset's",
    "csv": "a table as text (CSV)",
    "tsv": "a table as text (CSV)",
}
"""Forms that are not read, by a part of their names; docs/reference/corpora.md converts each."""
IN_WORDS: Final = f"{', '.join(FORMATS)}, plain or with {' or '.join(COMPRESSIONS)}"


def endings(name: str) -> tuple[str, str]:
    """One of FORMATS and one of COMPRESSIONS by a file's name, in either case; '' for one that it has not."""
    name = name.lower()
    compression = next((c for c in COMPRESSIONS if name.endswith(c)), "")
    name = name.removesuffix(compression)
    if name.endswith(".ndjson"):  # another name for JSON lines
        return ".jsonl", compression
    return next((form for form in FORMATS if name.endswith(form)), ""), compression


def may_be_read(pattern: str) -> bool:
    """Whether documents are read from files that match, by its end: after a wildcard nobody can tell."""
    kind, compression = endings(pattern)
    return bool(kind) or pattern[: len(pattern) - len(compression)].endswith(("*", "?", "]", "}"))


def known_other_form(name: str) -> str:
    """What a file that is not read is, by its name, as the end of a sentence about it; '' if that tells nothing."""
    parts = name.lower().split(".")[1:]
    kind = next((kind for part, kind in CONVERTED.items() if part in parts), "")
    return f": this is {kind}, which docs/reference/corpora.md converts" if kind else ""
