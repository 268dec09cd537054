"""All rows, in the order of the table."""

from tests.faults.api_rows import api_rows
from tests.faults.cluster_rows import cluster_rows
from tests.faults.judging_rows import judging_rows
from tests.faults.kills import AGAIN
from tests.faults.preemptions import preemption_row
from tests.faults.process_rows import process_rows
from tests.faults.rows import Row
from tests.faults.search_rows import search_rows
from tests.faults.store_rows import store_rows

SHORT_OUTAGE_SECONDS, FULL_OUTAGE_SECONDS = 60.0, 600.0


def all_rows(*, full: bool = False) -> list[Row]:
    """Every row but the kills after the n-th write, whose number a run finds out."""
    outage = FULL_OUTAGE_SECONDS if full else SHORT_OUTAGE_SECONDS
    rows = [AGAIN, *api_rows(), *store_rows(outage), *cluster_rows()]
    return [*rows, preemption_row(), *process_rows(), *search_rows(), *judging_rows()]
