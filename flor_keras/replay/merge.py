"""One result out of those of several workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flor_keras.records import Verdict

_LISTS = ("differing", "held_back", "causes", "unchecked", "diverted", "refused", "told")


def merge_reports(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a report as one worker that did all of it would have given it."""
    differences = [r["max_abs_diff"] for r in reports if r.get("max_abs_diff") is not None]
    firsts = [r["first_difference"] for r in reports if r.get("first_difference")]
    errors = [report["error"] for report in reports if report["error"]]
    verdict = merge_verdicts(Verdict(report.get("verified", Verdict.UNCHECKED)) for report in reports)
    unchecked = [at for report in reports for at in report.get("unchecked", ())]
    return {
        "error": errors[0] if errors else None,
        "num_entries": sum(report.get("num_entries", 0) for report in reports),
        "num_compared": sum(report.get("num_compared", 0) for report in reports),
        "verified": less_unchecked(verdict, unchecked).value,
        "max_abs_diff": max(differences, default=None),
        "first_difference": min(firsts, key=_place, default=None),
        **{key: list(dict.fromkeys(v for report in reports for v in report.get(key, ()))) for key in _LISTS},
    }


def merge_verdicts(verdicts: Iterable[Verdict]) -> Verdict:
    """Return what holds of the whole: one difference is one too many, one comparison is better than none."""
    found = set(verdicts)
    order = (Verdict.APPROXIMATE, Verdict.EXACT)
    return next((verdict for verdict in order if verdict in found), Verdict.UNCHECKED)


def less_unchecked(verdict: Verdict, unchecked: Sequence[str]) -> Verdict:
    """Return what holds where values were computed in places that could be compared with nothing: not that all is exact."""
    return Verdict.UNCHECKED if unchecked and verdict is Verdict.EXACT else verdict


def _place(first: Mapping[str, Any]) -> list[float]:
    """Order positions as training came to them: what belongs to an epoch as a whole comes after its steps."""
    loop, epoch, step = first["position"]
    return [-1 if loop is None else loop, *(float("inf") if at is None else at for at in (epoch, step))]
