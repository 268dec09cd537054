"""Times as Kubernetes and the ledger write them."""

from datetime import UTC, datetime


def parse_timestamp(text: str) -> datetime | None:
    """The moment behind an RFC 3339 text, in UTC if that names no zone; None if it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
