"""Match each Kineto host row to its ET node: by record-function id, else by order within each thread.

Both recordings name the same ``RecordFunction`` events, so a right pair agrees in every name. Nothing is ever matched
under another name: a few rows that disagree stay unmatched and are counted; more of them are two recordings of
different runs, which is an error.
"""

from __future__ import annotations

import numpy as np

from graphlink.errors import InputError
from graphlink.linking.names import HostNames, common_names
from graphlink.linking.order import match_by_order
from graphlink.linking.provenance import differences
from graphlink.model import I32, NOWHERE, Bool, HostMatch, HostTrace, Trace
from graphlink.tables import lookup, marked, spread

MAX_WRONG_NAMES = 3  # pairs by id whose names differ are tolerated up to this number
MAX_WRONG_SHARE = 0.01  # or this share of the pairs, if that is more
MIN_RIGHT_SHARE = 0.5  # but never if fewer than these agree


def match_hosts(trace: Trace, et: HostTrace | None) -> HostMatch:
    """Pair Kineto's host rows with ET nodes, one int32 position in the ET a row; O(n log n).

    Method "rf_id" where Kineto has more than one record-function id (a constant means that none were recorded) and the
    ET shares some, each pair checked by name; else "order" (``link.order``); "kineto" where there is no ET. That the ET
    covers less than the recording, and that pid, date or group sizes differ although ids and names agree, are warnings.
    Raises ``InputError`` for an ET of another run.
    """
    names = common_names(trace, et)
    if et is None:
        return HostMatch("kineto", np.full(len(names.kineto), NOWHERE, np.int32), names.count(names.kineto), {}, ())
    warnings: list[str] = []
    by_id = _ids_to_rows(trace, et)
    if by_id is not None:
        method = "rf_id"
        wrong = (by_id != NOWHERE) & (names.et[by_id] != names.kineto)
        _refuse_other_run(trace, et, names, by_id, wrong)
        if wrong.any():
            warnings.append(
                f"{np.count_nonzero(wrong)} host rows share their id with an ET node of another name: left unmatched"
            )
        pairs = np.where(wrong, NOWHERE, by_id).astype(np.int32)
    else:
        method = "order"
        pairs, notes = match_by_order(trace, et, names)
        warnings += notes
    misfits = tuple(warnings)
    only_kineto, only_et = pairs == NOWHERE, ~marked(len(et.id), pairs[pairs != NOWHERE]) & (et.rf_id > 0)
    warnings += _coverage(names, only_kineto, only_et, et.rf_id > 0)
    found = differences(trace, et)
    warnings += (
        [f"ET and Kineto trace agree in names but not in {', '.join(found)}: two runs of one program?"] if found else []
    )
    return HostMatch(
        method, pairs, names.count(names.kineto[only_kineto]), names.count(names.et[only_et]), tuple(warnings), misfits
    )


def _ids_to_rows(trace: Trace, et: HostTrace) -> I32 | None:
    """Map ids to rows: the ET row with each Kineto row's id; None where ids cannot tell. An id that repeats belongs to
    the row that began first."""
    ids, first = np.unique(trace.host.rf_id, return_index=True)
    if np.count_nonzero(ids > 0) < 2:
        return None
    out = spread(len(trace.host.rf_id), first, lookup(et.rf_id, ids).astype(np.int32))
    return out if (out != NOWHERE).any() else None


def _refuse_other_run(trace: Trace, et: HostTrace, names: HostNames, pairs: I32, wrong: Bool) -> None:
    shared, unequal = int(np.count_nonzero(pairs != NOWHERE)), int(np.count_nonzero(wrong))
    allowed = max(MAX_WRONG_NAMES, MAX_WRONG_SHARE * shared)
    if unequal <= allowed and shared - unequal >= MIN_RIGHT_SHARE * shared:
        return
    bad = np.flatnonzero(wrong)
    first = bad[np.argmin(trace.host.rf_id[bad])]
    kineto_name, et_name = names.text[names.kineto[first]], names.text[names.et[pairs[first]]]
    evidence = [
        f"id {trace.host.rf_id[first]} is {et_name!r} in the ET, {kineto_name!r} in Kineto",
        *differences(trace, et),
    ]
    raise InputError(
        f"ET and Kineto trace are of two runs: {shared} ids are in both, but only {shared - unequal} under the same "
        "name",
        path=et.path,
        where="; ".join(evidence),
        todo=f"give the ET and the Kineto trace of one rank of one run (Kineto: {trace.path})",
    )


def _coverage(names: HostNames, only_kineto: Bool, only_et: Bool, is_node: Bool) -> list[str]:
    """Warn where a side lacks rows of names that it does have elsewhere: it covers fewer iterations, or a shorter
    window.
    """
    in_kineto, in_et = names.present(names.kineto), names.present(names.et[is_node])
    notes = []
    if (only_kineto & in_et[names.kineto]).any():
        rows = len(only_kineto)
        notes.append(
            f"the ET covers {rows - np.count_nonzero(only_kineto)} of {rows} Kineto host rows: fewer iterations or a "
            "shorter window"
        )
    if (only_et & in_kineto[names.et]).any():
        notes.append(
            f"{np.count_nonzero(only_et)} of {np.count_nonzero(is_node)} ET nodes are not in the Kineto trace's window"
        )
    return notes
