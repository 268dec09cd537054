"""Paths and names of the demo."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
STATE = REPOSITORY / ".demo"
"""Everything the demo makes, except for the compiled tools, which are in the user's cache."""
EXAMPLES = REPOSITORY / "crds" / "examples"

NAMESPACE = "research"
"""Where the sweep and the prediction live."""
OPERATOR_NAMESPACE = "isoloss-system"
OPERATOR_ACCOUNT = "isoloss-operator"

BUCKET = "demo"
STORE = f"s3://{BUCKET}"
SECRET = "demo-s3"

SWEEP = "demo"
PREDICTION = "demo"
VALIDATION = "demo-validation"
"""The sweep around the prediction's answer."""
SWEEP_FILE = EXAMPLES / "demo-sweep.yaml"
PREDICTION_FILE = EXAMPLES / "demo-prediction.yaml"
VALIDATION_FILE = EXAMPLES / "demo-validation.yaml"
