"""Sequences per optimizer step, from settings of trainers. Never those of one device without the number of devices."""

from collections.abc import Callable, Sequence

from isoloss.tables import known_names
from isoloss.tables.cell_values import are_same, is_blank
from isoloss.tables.expressions import option, product_of
from isoloss.tables.lookup import Found, Lookup


def batch_size_of(lookup: Lookup, sequence_length: Callable[[], Found | None]) -> Found | None:
    """Sequences per optimizer step. Never those of one device without the number of devices."""
    found = lookup.of_tiers("batch_size")
    if found is not None:
        if known_names.bare(found.label)[0] == "batch_size":
            refuse_part_of_batch(lookup, found.label)
        return found
    for name in known_names.TOKENS_PER_STEP:
        tokens = lookup.setting(name)
        if tokens is not None and (length := sequence_length()) is not None:
            return _quotient(lookup, tokens, length)
    for name in known_names.PER_DEVICE:
        if (part := lookup.setting(name)) is not None:
            return _of_all_devices(lookup, part)
    return None


def refuse_part_of_batch(lookup: Lookup, label: str) -> None:
    """Raise BadTable where batch_size may be what one device takes at once."""
    if (factor := _several(lookup, known_names.BATCH_FACTORS)) is not None:
        raise lookup.refused(
            "batch_size",
            f"with a column {factor}, {label} may be the batch of one device or of one forward pass; sequences "
            f"per optimizer step are expected: say which, as in {option('batch_size', 'batch_size')} or "
            f"{option('batch_size', product_of('batch_size', factor))}",
        )


def _several(lookup: Lookup, names: Sequence[str]) -> str | None:
    """The first of these settings that is another number than 1 in some run."""
    for name in names:
        found = lookup.setting(name)
        if found is not None and any(
            not is_blank(cell) and not are_same(cell, 1) for cell in found.cells
        ):
            return found.label
    return None


def _of_all_devices(lookup: Lookup, part: Found) -> Found:
    """The product of the batch of one device, accumulation steps and devices. Raises BadTable if one is missing or in doubt."""
    steps = list(filter(None, map(lookup.setting, known_names.ACCUMULATION)))
    devices = list(filter(None, map(lookup.setting, known_names.DEVICES)))
    given = [each[0].label if each else "" for each in (steps, devices)]
    product = product_of(part.label, given[0] or "ACCUMULATION", given[1] or "DEVICES")
    if len(steps) != 1 or len(devices) != 1:
        raise lookup.refused(
            "batch_size",
            f"{part.label} is the batch of one device: give the sequences per optimizer step, as in "
            f"{option('batch_size', product)} with the numbers for the names in capitals",
        )
    of_nodes = known_names.bare(given[1])[0] not in known_names.OF_ALL_NODES
    also_sharded = (*(known_names.NODES if of_nodes else ()), *known_names.SHARING)
    if (doubt := _several(lookup, also_sharded)) is not None:
        devices_known = product_of(part.label, given[0], "DEVICES")
        raise lookup.refused(
            "batch_size",
            f"with a column {doubt}, {given[1]} may not be how many devices take a batch each: give the sequences per optimizer "
            f"step, as in {option('batch_size', devices_known)} with that number for DEVICES",
        )
    factors = [part, *steps, *devices]
    cells = lookup.products("batch_size", factors)
    return Found("*".join(each.label for each in factors), cells)


def _quotient(lookup: Lookup, tokens: Found, length: Found) -> Found:
    rows = enumerate(zip(tokens.cells, length.cells, strict=True))
    pairs = [[lookup.number("batch_size", index, cell) for cell in cells] for index, cells in rows]
    cells = [None if over is None or not under else over / under for over, under in pairs]
    return Found(f"{tokens.label}/sequence_length", cells)
