"""Objects that a tenant writes to take the operator down: each is refused at a cost that its limit bounds.

The lease is renewed by a thread of the same process, which a call into pydantic locks out.
"""

import gzip
import json
from collections import Counter

import pytest
from pydantic import ValidationError

from isoloss_contract.ledger_files import decoded_head
from isoloss_contract.records import PointResult
from isoloss_contract.store import BadRecord, limits, parse_json_object, parse_record
from tests.support.hostile_objects import KINDS, LISTS, MAPPINGS, hostile

MOST_BYTES = 16 * 2**20
MOST_VALUES = 160_000
"""Of any kind. pydantic takes half a second for that many, and seconds for half a MiB of values without a limit."""
MOST_ERRORS = 20
"""Of one object, beside one for each field that is not known: pydantic copies what was wrong for each."""

CASES = [(name, what) for name in KINDS for what in hostile(name)]


@pytest.mark.parametrize(("name", "what"), CASES)
def test_a_hostile_object_of_the_largest_size_is_refused_with_bounded_work(
    name: str, what: str
) -> None:
    """Work is what pydantic parses and the errors that it collects: both are counted, since a clock tells of the machine too."""
    limit, model = KINDS[name]
    content = hostile(name)[what]()
    limit.check(content, "x")
    assert len(content) <= MOST_BYTES
    assert sum(map(content.count, (b",", b"[", b"{"))) <= MOST_VALUES
    with pytest.raises(BadRecord, match=r"^s3://lab/object\.json: ") as refused:
        parse_record(content, model, "s3://lab/object.json", limit=limit)
    assert len(str(refused.value)) <= 600
    cause = refused.value.__cause__
    assert isinstance(cause, ValidationError)
    kinds = Counter(each["type"] for each in cause.errors(include_input=False))
    assert kinds.pop("unexpected_keyword_argument", 0) + kinds.pop("extra_forbidden", 0) <= (
        MOST_VALUES if what == "unknown fields" else 1
    )
    assert kinds.total() <= MOST_ERRORS


@pytest.mark.parametrize("name", [*LISTS, *MAPPINGS])
def test_no_list_or_mapping_is_looked_at_beyond_its_first_bad_item(name: str) -> None:
    limit, model = KINDS[name]
    contents = hostile(name)
    content = contents["bad items" if name in LISTS else "bad members"]()
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


def test_a_config_of_a_model_with_a_key_twice_is_refused() -> None:
    with pytest.raises(BadRecord, match=r"^x: the key 'vocab_size' is there twice: keep one"):
        parse_json_object(b'{"text_config": {"vocab_size": 1, "vocab_size": 2}}', "x")


def test_a_head_that_nests_too_deeply_is_refused() -> None:
    with pytest.raises(BadRecord, match=r"x: .*invalid JSON: recursion limit"):
        decoded_head(gzip.compress(b"[" * 100_000), "x")


@pytest.mark.parametrize("number", [10**400, 10**4298, 10**19], ids=["400", "4298", "19"])
def test_an_integer_that_no_count_comes_to_is_refused(number: int) -> None:
    """As a float it would end the pass with OverflowError."""
    content = json.dumps({"steps": number}).encode()
    with pytest.raises(BadRecord) as refused:
        parse_record(content, PointResult, "x")
    cause = refused.value.__cause__
    assert isinstance(cause, ValidationError)
    assert any(each["loc"] == ("steps",) for each in cause.errors())
