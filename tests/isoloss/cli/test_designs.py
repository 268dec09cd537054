"""The table of designs on the page on sizing: each row is what `isoloss init` chooses."""

from pathlib import Path
from typing import Any

import pytest

from isoloss import formatting
from tests.support.command_line import Isoloss
from tests.support.pages import CHECKOUT
from tests.support.published_configs import (
    DEEPSEEK_V3,
    LLAMA_3_2_1B,
    LLAMA_3_8B,
    QWEN3_30B_A3B,
    write_checkpoint,
)

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "Llama 3 8B": LLAMA_3_8B,
    "Qwen3 30B-A3B": QWEN3_30B_A3B,
    "Llama 3.2 1B": LLAMA_3_2_1B,
    "DeepSeek-V3": DEEPSEEK_V3,
}
PAGE = CHECKOUT / "docs" / "guides" / "sizing.md"


def shown() -> list[list[str]]:
    """Cells of the rows of the page that begin with a checkpoint."""
    rows = [line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines()]
    return [row for row in rows if row[0] in CHECKPOINTS]


@pytest.mark.parametrize("row", shown(), ids=lambda row: f"{row[0]}, {row[1]}")
def test_the_page_on_sizing_has_what_init_chooses(
    row: list[str], isoloss: Isoloss, tmp_path: Path
) -> None:
    uri = write_checkpoint(tmp_path / "models" / "checkpoint", CHECKPOINTS[row[0]])
    ended = isoloss(
        *("init", "--checkpoint", uri, "--corpus", "s3://corpora/pile/*.parquet"),
        *("--tokens", row[1], "--accelerators", 64, "--out", tmp_path / "m.yaml", "--json"),
    )
    assert ended.code == 0, ended.err
    (chosen,) = (each for each in ended.document["designs"] if each["chosen"])
    sizes = ", ".join(
        f"{formatting.count(size['params'])} to {formatting.count(size['tokens'])}"
        for size in chosen["sizes"]
    )
    assert row[2:] == [
        sizes,
        f"{formatting.number(100 * chosen['expected_cost_share'], 2)}%",
        formatting.number(chosen["expected_hours"], 3),
        formatting.number(1e3 * chosen["expected_regret"], 2),
        f"{formatting.number(100 * chosen['expected_regret_share'], 2)}%",
        f"{chosen['learning_rate_factor']:.2f}",
        f"{chosen['batch_size_factor']:.2f}",
    ]


def test_the_page_has_all_of_them() -> None:
    """None was lost from the table."""
    assert {row[0] for row in shown()} == set(CHECKPOINTS)
