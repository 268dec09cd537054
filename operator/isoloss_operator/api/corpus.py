"""Part of a ScalingSweep's spec: the storage and the corpus."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from isoloss_operator.api import fields


class Storage(fields.ApiType):
    """Object storage of a sweep."""

    # Another place would delete the running Jobs and start the sweep over, as other data would.
    uri: Annotated[fields.FolderUri, fields.IDENTITY]
    """Folder for tokenized data, points, ledger and laws (s3://, gs:// or file://), under a prefix that is allowed
    for the namespace. Immutable."""
    secret_name: fields.ObjectName | None = None
    """Name of a Secret in the same namespace whose keys, such as AWS_ACCESS_KEY_ID, become environment variables of
    all pods. The operator never reads it."""


class Domain(fields.ApiType):
    """One part of the corpus."""

    name: fields.DnsLabel
    """Name under which losses are reported."""
    uri: fields.StoreUri
    """Files or a glob pattern under an allowed prefix: .parquet, .jsonl, .json, .arrow or .txt, plain, .gz or
    .zst."""
    text_field: str = Field(default="text", min_length=1, max_length=253)
    """Field of each document that holds the text, or a path to it, such as meta.text."""
    weight: int = Field(ge=1, le=1_000_000)
    """Share of the training tokens, relative to the other domains. Also the domain's weight in the
    validation loss."""


class Validation(fields.ApiType):
    """Held-out documents."""

    documents_per_thousand: int = Field(default=5, ge=1, le=500)
    """Documents out of 1000 that are held out of training, chosen by a hash of their text."""
    sequences_per_domain: int = Field(default=1024, ge=1, le=1_000_000)
    """Maximum number of validation sequences per domain, the same for every run."""


class Data(fields.ApiType):
    """The corpus and how it is tokenized."""

    tokenizer: Annotated[fields.FolderUri, fields.IDENTITY]
    """Folder with a tokenizer in Hugging Face format (tokenizer.json), under an allowed prefix. Immutable."""
    sequence_length: Annotated[int, Field(ge=8, le=1_048_576), fields.IDENTITY]
    """Tokens per training sequence. Immutable."""
    domains: Annotated[
        tuple[Domain, ...],
        Field(min_length=1, max_length=32, json_schema_extra=fields.BY_NAME),
        AfterValidator(fields.names_are_unique),
        fields.IDENTITY,
        # Equality of lists with map keys ignores the order, which the corpus' key does not.
        fields.Rule("self.map(d, d.name) == oldSelf.map(d, d.name)", fields.IDENTITY.message),
    ]
    """Parts of the corpus. Immutable."""
    validation: Annotated[Validation, fields.IDENTITY] = Validation()
    """Held-out documents. Immutable."""
    bad_documents: Annotated[Literal["Skip", "Refuse"], fields.IDENTITY] = "Skip"
    """Documents without text, that are not JSON or UTF-8, or that contain the tokenizer's end token: Skip counts them
    and refuses the corpus above 1% of a domain; Refuse refuses it for the first one. Immutable."""
    parallelism: int = Field(default=1, ge=1, le=1000)
    """Number of pods that tokenize the corpus, each some of its files. They are one Job."""
    pod_template: fields.PodTemplate | None = None
    """Merged into each pod that tokenizes the corpus, after spec.podTemplate. Set an accelerator limit of
    spec.podTemplate to 0 here."""
