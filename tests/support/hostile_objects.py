"""The worst objects of each kind that a tenant can put into a store: as large as the limit of that kind lets through."""

from collections.abc import Callable
from typing import Any

from isoloss_contract import records
from isoloss_contract.ledger import PointRecord
from isoloss_contract.ledger_files import LedgerHead
from isoloss_contract.store import limits
from isoloss_contract.store.limits import Limit
from isoloss_operator.store.fit_files import FitRecord, LawsFile

KINDS: dict[str, tuple[Limit, type[Any]]] = {
    "manifest": (limits.MANIFEST, records.DataManifest),
    "corpus": (limits.PROGRESS, records.SweepCorpus),
    "result": (limits.RESULT, records.PointResult),
    "evaluation": (limits.EVALUATION, records.EvaluationResult),
    "progress": (limits.PROGRESS, records.PointProgress),
    "fit": (limits.FIT, FitRecord),
    "laws": (limits.LAWS, LawsFile),
    "ledger head": (limits.LEDGER_HEAD, LedgerHead),
    "ledger point": (limits.LINE, PointRecord),
    "trajectory row": (limits.LINE, records.TrajectoryRow),
}
LISTS = {
    "manifest": ("domains",),
    "fit": ("step", "decisions"),
    "laws": ("laws", "optima"),
    "ledger head": ("additions",),
    "ledger point": ("attempts", "failures"),
}
MAPPINGS = {
    "result": ("versions",),
    "evaluation": ("domains",),
    "ledger point": ("attempts", "charged"),
}


def largest(head: str, item: Callable[[int], str], tail: str, limit: Limit, values: int) -> bytes:
    """As many items of so many values as the limit lets through."""
    room = limit.max_bytes - len(head) - len(tail)
    count = min((limit.max_values - 20) // values, room // (len(item(10**6)) + 1))
    return (head + ",".join(map(item, range(count))) + tail).encode()


def opened(path: tuple[str, ...], bracket: str) -> str:
    return "".join(f'{{"{name}":' for name in path) + bracket


def hostile(name: str) -> dict[str, Callable[[], bytes]]:
    """By what is wrong with it: makes the largest content that the limit of that kind lets through."""
    limit, _ = KINDS[name]
    found: dict[str, Callable[[], bytes]] = {
        "unknown lists": lambda: largest('{"junk":[', lambda _: "[]", "]}", limit, 2),
        "unknown objects": lambda: largest('{"junk":[', lambda _: "{}", "]}", limit, 2),
        "unknown fields": lambda: largest("{", lambda n: f'"{n}":0', "}", limit, 1),
        "long integers": lambda: largest('{"junk":[', lambda _: "1" * 4299, "]}", limit, 1),
        "long fractions": lambda: largest(
            '{"junk":[', lambda _: f"1.{'1' * 4299}e300", "]}", limit, 1
        ),
        "one string": lambda: b'{"junk":"' + b"a" * (limit.max_bytes - 11) + b'"}',
        "one number": lambda: b'{"junk":' + b"1" * (limit.max_bytes - 9) + b"}",
        "nested": lambda: b'{"junk":' + b"[" * min(limit.max_values - 20, limit.max_bytes // 2),
        "not JSON": lambda: b"\x00" * limit.max_bytes,
    }
    if name in LISTS:
        head, tail = opened(LISTS[name], "["), "]" + "}" * len(LISTS[name])
        found["bad items"] = lambda: largest(head, lambda _: "{}", tail, limit, 2)
    if name in MAPPINGS:
        first, last = opened(MAPPINGS[name], "{"), "}" * (1 + len(MAPPINGS[name]))
        found["bad members"] = lambda: largest(first, lambda n: f'"{n}":{{}}', last, limit, 2)
    return found
