"""YAML is read and written as Kubernetes does; tests/deploy/test_api_server.py asks kubectl and a server for the same table."""

from typing import Any

import pytest
import yaml

from isoloss.yaml_text import read_documents, to_yaml
from tests.support import kubernetes_yaml


def read(text: str) -> Any:
    """The only document."""
    (document,) = read_documents(text)
    return document


@pytest.mark.parametrize(("word", "value"), kubernetes_yaml.SCALARS.items())
def test_a_word_without_quotes_is_what_kubernetes_takes_it_for(word: str, value: Any) -> None:
    found = read(f"a: {word}\n")["a"]
    assert found == value
    assert type(found) is type(value)
    assert read(f"[{word}]\n") == [value]
    assert read(f"a: '{word}'\n") == {"a": word}


@pytest.mark.parametrize(("written", "name"), kubernetes_yaml.KEYS.items())
def test_a_key_is_the_text_that_kubernetes_makes_of_it(written: str, name: str) -> None:
    assert read(f"{written}: 1\n") == {name: 1}


@pytest.mark.parametrize("word", [*kubernetes_yaml.SCALARS, "", "~", "null", ".inf", "<<", "15"])
def test_text_is_written_so_that_every_reader_takes_it_for_text(word: str) -> None:
    text = to_yaml({word: [word]})
    assert read(text) == {word: [word]}
    assert yaml.safe_load(text) == {word: [word]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: .inf\n", ".inf is a number that JSON does not have"),
        ("a: .NaN\n", ".NaN is a number that JSON does not have"),
        ("~: 1\n", "a key is text: put it in quotes"),
        ("a: !!int b\n", "'b' is not of the type int"),
        ("y: 1\ntrue: 2\n", "true is in line 1 already: keep one of them"),
        ("1: 1\n'1': 2\n", "1 is in line 1 already: keep one of them"),
        ("a: !secret b\n", "could not determine a constructor for the tag '!secret'"),
        ("a: !!set {b, c}\n", "could not determine a constructor"),
        ("a: {<<: 1}\n", "<< takes a mapping, or a list of them"),
    ],
)
def test_what_kubectl_cannot_send_is_refused(text: str, says: str) -> None:
    with pytest.raises(yaml.YAMLError, match="line") as refused:
        read_documents(text)
    assert says in str(refused.value)


def test_of_a_merged_and_a_written_value_the_last_is_kept() -> None:
    text = "x: &x {a: 1, b: 1}\nfirst: {<<: *x, a: 2}\nlast: {a: 2, <<: *x}\n"
    found = read(text)
    assert found["first"] == {"a": 2, "b": 1}
    assert found["last"] == {"a": 1, "b": 1}


def test_tags_of_yaml_itself_are_read() -> None:
    text = "[!!binary YWI=, !!str 3, !!float 3, !!timestamp 2001-12-14, <<]\n"
    assert read(text) == ["ab", "3", 3, "2001-12-14", "<<"]
