"""What is kept of the API server's words."""

import json
from typing import Any

import pytest

from isoloss_operator.cluster.client import _message

GO = 'core.PodTemplateSpec{ObjectMeta:v1.ObjectMeta{Name:"", Labels:map[string]string{}}}, ' * 60


@pytest.mark.parametrize("has_causes", [False, True])
def test_of_a_long_refusal_the_fields_name_and_the_end_are_kept(*, has_causes: bool) -> None:
    """The middle is a template in Go's notation."""
    wrong = f"Invalid value: {GO}: field is immutable"
    status: dict[str, Any] = {"message": f'Job.batch "x" is invalid: spec.template: {wrong}'}
    if has_causes:
        causes = [
            {"reason": "FieldValueInvalid", "field": f"spec.{name}", "message": wrong}
            for name in ("template", "completions")
        ]
        status["details"] = {"causes": causes}
    said = _message(json.dumps(status).encode())
    assert len(said) < 700
    assert "spec.template: Invalid value" in said
    assert said.endswith(": field is immutable")
    assert ("spec.completions" in said) == has_causes


def test_a_short_refusal_is_said_as_it_is() -> None:
    assert _message(b'{"message": "exceeded quota"}') == "exceeded quota"
    assert _message(b"<html>" + b"x" * 1000).startswith("<html>xxx")
    assert _message(b'{"message": "' + b"x" * 700 + b'", "details": 3}').startswith('{"message"')
