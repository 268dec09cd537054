"""Which files hold documents, by the endings of their names: what the trainer reads, and `isoloss init` writes."""

from typing import Final

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
}
"""Forms that are not read, by a part of their names; docs/reference/corpora.md converts each."""
IN_WORDS: Final = f"{', '.join(FORMATS)}, plain or with {' or '.join(COMPRESSIONS)}"


def endings(name: str) -> tuple[str, str]:
    """One of FORMATS and one of COMPRESSIONS by a file's name, in either case; '' for one that it has not."""
    name = name.lower()
    compression = next((c for c in COMPRESSIONS if name.endswith(c)), "")
    return next(
        (f for f in FORMATS if name.removesuffix(compression).endswith(f)), ""
    ), compression


def may_be_read(pattern: str) -> bool:
    """Whether documents are read from files that match, by its end: after a wildcard nobody can tell."""
    kind, compression = endings(pattern)
    return bool(kind) or pattern[: len(pattern) - len(compression)].endswith(("*", "?", "]", "}"))


def known_other_form(name: str) -> str:
    """What a file that is not read is, by its name, as the end of a sentence about it; '' if that tells nothing."""
    parts = name.lower().split(".")[1:]
    kind = next((kind for part, kind in CONVERTED.items() if part in parts), "")
    return f": this is {kind}, which docs/reference/corpora.md converts" if kind else ""
