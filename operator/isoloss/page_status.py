"""report.json: what the page of a sweep shows, for programs and for users with access to the store alone.

The operator writes it with the page, next to it. It is the resource as kubectl prints it, without the spec, with the laws
that are on the page.
"""

from typing import Any

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from isoloss.errors import BadInput
from isoloss_contract import layout
from isoloss_contract.records import Report
from isoloss_contract.store import NotFound, Store, StoreError


class _Shown(Report):
    """Part of the file. Only what is shown is read, and that strictly."""

    model_config = ConfigDict(alias_generator=to_camel)


class Condition(_Shown):
    """One of status.conditions."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    observed_generation: int = 0


class Law(_Shown):
    """A law in words."""

    status: str = ""
    formula: str = ""
    reason: str = ""
    message: str = ""


class Size(_Shown):
    """One of status.sizes."""

    proxy: str
    progress: str = ""
    trained: int = 0
    loss: str = ""


class Search(_Shown):
    """What is shown of status.search."""

    message: str = ""
    finished: int = 0
    paused: int = 0
    not_chosen: int = 0
    added: int = 0
    saved_flops: str = ""


class Metadata(_Shown):
    """Which sweep it is."""

    name: str
    namespace: str
    generation: int


class SweepStatus(_Shown):
    """What is shown of a sweep."""

    conditions: list[Condition] = Field(default_factory=list, max_length=32)
    points: dict[str, int] = Field(default_factory=dict)
    sizes: list[Size] = Field(default_factory=list, max_length=64)
    planned_flops: str = ""
    spent_flops: str = ""
    accelerator_hours: str = ""
    estimated_completion: str = ""
    learning_rate_law: Law | None = None
    batch_size_law: Law | None = None
    loss_compute_law: Law | None = None
    search: Search | None = None


class PageStatus(_Shown):
    """report.json."""

    metadata: Metadata
    status: SweepStatus


def read_page_status(store: Store, folder: str) -> dict[str, Any]:
    """The parts that are shown of the sweep in `folder`; {} before the first page.

    Raises BadInput naming the file, and the field of one that is damaged.
    """
    try:
        found = store.read_record(layout.page_status_in(folder), PageStatus)
    except NotFound:
        return {}
    except StoreError as error:
        raise BadInput(str(error)) from error
    return found.model_dump(by_alias=True, exclude_none=True)
