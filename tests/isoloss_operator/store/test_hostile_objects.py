"""Objects that a tenant writes to take the operator down: each is refused at a cost that its limit bounds.

The lease is renewed by a thread of the same process, which a call into pydantic locks out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from isoloss_contract.ledger_files import LedgerHead, _Entry, parse_head
from isoloss_contract.records import (
    DataManifest,
    EvaluationResult,
    PointProgress,
    PointResult,
    TrajectoryRow,
)
from isoloss_contract.store import BadRecord, limits, parse_json_object, parse_record
from isoloss_contract.store.limits import Limit
from isoloss_operator.store.fit_files import FitRecord, LawsFile

KINDS: dict[str, tuple[Limit, type[Any]]] = {
    "manifest": (limits.MANIFEST, DataManifest),
    "result": (limits.RESULT, PointResult),
    "evaluation": (limits.EVALUATION, EvaluationResult),
    "progress": (limits.PROGRESS, PointProgress),
    "fit": (limits.FIT, FitRecord),
    "laws": (limits.LAWS, LawsFile),
    "ledger head": (limits.LEDGER_HEAD, LedgerHead),
    "ledger entry": (limits.LINE, _Entry),
    "trajectory row": (limits.LINE, TrajectoryRow),
}
LISTS = {
    "manifest": ("domains",),
    "fit": ("step", "decisions"),
    "laws": ("laws", "optima"),
    "ledger head": ("segments",),
    "ledger entry": ("record", "attempts", "failures"),
}
MAPPINGS = {
    "result": ("versions",),
    "evaluation": ("domains",),
    "ledger entry": ("record", "attempts", "charged"),
}
CPU_SECONDS = 2.0
"""Four times what the worst of them takes; half a MiB of bad items took 4 s without the limits."""


def largest(head: str, item: Callable[[int], str], tail: str, limit: Limit, values: int) -> bytes:
    """As many items of so many values as the limit lets through."""
    room = limit.max_bytes - len(head) - len(tail)
    count = min((limit.max_values - 20) // values, room // (len(item(10**6)) + 1))
    return (head + ",".join(map(item, range(count))) + tail).encode()


def opened(path: tuple[str, ...], bracket: str) -> str:
    return "".join(f'{{"{name}":' for name in path) + bracket


def hostile(name: str) -> dict[str, bytes]:
    """By what is wrong with it: the largest content that the limit of that kind lets through."""
    limit, _ = KINDS[name]
    found = {
        "unknown lists": largest('{"junk":[', lambda _: "[]", "]}", limit, 2),
        "unknown objects": largest('{"junk":[', lambda _: "{}", "]}", limit, 2),
        "unknown fields": largest("{", lambda n: f'"{n}":0', "}", limit, 1),
        "long integers": largest('{"junk":[', lambda _: "1" * 4299, "]}", limit, 1),
        "long fractions": largest('{"junk":[', lambda _: f"1.{'1' * 4299}e300", "]}", limit, 1),
        "one string": b'{"junk":"' + b"a" * (limit.max_bytes - 11) + b'"}',
        "one number": b'{"junk":' + b"1" * (limit.max_bytes - 9) + b"}",
        "nested": b'{"junk":' + b"[" * min(limit.max_values - 20, limit.max_bytes // 2),
        "not JSON": b"\x00" * limit.max_bytes,
    }
    if name in LISTS:
        head, tail = opened(LISTS[name], "["), "]" + "}" * len(LISTS[name])
        found["bad items"] = largest(head, lambda _: "{}", tail, limit, 2)
    if name in MAPPINGS:
        head, tail = opened(MAPPINGS[name], "{"), "}" * (1 + len(MAPPINGS[name]))
        found["bad members"] = largest(head, lambda n: f'"{n}":{{}}', tail, limit, 2)
    return found


CASES = [(name, what) for name in KINDS for what in hostile(name)]


@pytest.mark.parametrize(("name", "what"), CASES)
def test_a_hostile_object_of_the_largest_size_is_refused_in_bounded_time(
    name: str, what: str
) -> None:
    limit, model = KINDS[name]
    content = hostile(name)[what]
    limit.check(content, "x")
    began = time.process_time()
    with pytest.raises(BadRecord, match=r"^s3://lab/object\.json: ") as refused:
        parse_record(content, model, "s3://lab/object.json", limit=limit)
    assert time.process_time() - began < CPU_SECONDS
    assert len(str(refused.value)) <= 600


@pytest.mark.parametrize("name", [*LISTS, *MAPPINGS])
def test_no_list_or_mapping_is_looked_at_beyond_its_first_bad_item(name: str) -> None:
    limit, model = KINDS[name]
    contents = hostile(name)
    content = contents["bad items" if name in LISTS else "bad members"]
    with pytest.raises(BadRecord) as refused:
        parse_record(content, model, "x", limit=limit)
    cause = refused.value.__cause__
    assert isinstance(cause, ValidationError)
    path = LISTS.get(name, ()) or MAPPINGS[name]
    inside = [each["loc"] for each in cause.errors() if each["loc"][: len(path)] == path]
    assert len({loc[len(path)] for loc in inside if len(loc) > len(path)}) == 1


@pytest.mark.parametrize("name", KINDS)
def test_an_object_beyond_its_limit_is_refused_before_it_is_parsed(name: str) -> None:
    limit, model = KINDS[name]
    with pytest.raises(BadRecord, match=f"larger than {limit.max_bytes} bytes"):
        parse_record(b" " * (limit.max_bytes + 1), model, "x", limit=limit)
    with pytest.raises(BadRecord, match=f"values, more than {limit.max_values}"):
        parse_record(b"[" * (limit.max_values + 1), model, "x", limit=limit)


def test_a_config_of_a_model_has_a_limit_too() -> None:
    with pytest.raises(BadRecord, match="values, more than"):
        parse_json_object(b'{"x":[' + b"0," * 60_000 + b"0]}", "x", limits.MODEL_CONFIG)
    with pytest.raises(BadRecord, match="recursion"):
        parse_json_object(b'{"x":' + b"[" * 10_000, "x", limits.MODEL_CONFIG)


def test_a_head_that_nests_too_deeply_is_refused() -> None:
    with pytest.raises(BadRecord, match=r"head\.json: not JSON"):
        parse_head(b"[" * 100_000, "head.json")


@pytest.mark.parametrize("number", [10**400, 10**4298, 10**19], ids=["400", "4298", "19"])
def test_an_integer_that_no_count_comes_to_is_refused(number: int) -> None:
    """As a float it would end the pass with OverflowError."""
    content = json.dumps({"steps": number}).encode()
    with pytest.raises(BadRecord) as refused:
        parse_record(content, PointResult, "x")
    cause = refused.value.__cause__
    assert isinstance(cause, ValidationError)
    assert any(each["loc"] == ("steps",) for each in cause.errors())
