"""Where traces are and where they come from; opening them; the errors of all the readers."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

from leasekit.core.errors import LeasekitError

DATA_ENVIRONMENT = "LEASEKIT_DATA"
DATA_DEFAULT = Path("shared", "data")
ANCESTORS_MAX = 4


class TraceError(LeasekitError):
    """A trace or its spec can't be used; the text names the file and the line or key, what was found and allowed."""


class TraceMissing(TraceError):
    """Traces that are not there; ``traces`` are their names as the deploy file gives them."""

    def __init__(self, text: str, traces: Sequence[str]) -> None:
        super().__init__(text)
        self.traces = tuple(traces)


class KnownTrace(NamedTuple):
    """A published trace: what it is, who publishes it, and which kind of load it is."""

    title: str
    publisher: str
    url: str
    batch: bool


_ITA, _PWA, _GWA = "the Internet Traffic Archive", "the Parallel Workloads Archive", "the Grid Workloads Archive"
_PWA_URL = "https://www.cs.huji.ac.il/labs/parallel/workload"

KNOWN_TRACES: Mapping[str, KnownTrace] = {
    "worldcup98": KnownTrace(
        "1998 World Cup Web Site Access Logs", _ITA, "https://ita.ee.lbl.gov/html/contrib/WorldCup.html", False
    ),
    "nasa-http": KnownTrace("NASA-HTTP", _ITA, "https://ita.ee.lbl.gov/html/contrib/NASA-HTTP.html", False),
    "lpc-egee": KnownTrace("LPC-EGEE-2004 (log l_lpc)", _PWA, _PWA_URL, True),
    "kth-sp2": KnownTrace("KTH-SP2-1996 (log l_kth_sp2)", _PWA, _PWA_URL, True),
    "hpc2n": KnownTrace("HPC2N-2002 (log l_hpc2n)", _PWA, _PWA_URL, True),
    "grid5000": KnownTrace("Grid'5000 (GWA-T-2)", _GWA, "http://gwa.ewi.tudelft.nl", True),
}


def known_trace(name: str) -> KnownTrace | None:
    """The published trace that a file's path speaks of, or none."""
    lowered = name.lower()
    return next((trace for word, trace in KNOWN_TRACES.items() if word in lowered), None)


def data_dir(
    explicit: Path | None = None, *, config: Path | None = None, environ: Mapping[str, str] | None = None
) -> Path | None:
    """The folder that trace names are relative to, or none.

    The first of: ``explicit`` (``--data``); the environment's ``LEASEKIT_DATA``; ``../shared/data`` where it
    exists; ``shared/data`` beside an ancestor (up to four levels) of the folder that holds the file ``config``.
    Raises :class:`TraceError` when one of the first two is given and is not a folder.
    """
    named = (os.environ if environ is None else environ).get(DATA_ENVIRONMENT, "")
    for what, folder in (("--data", explicit), (DATA_ENVIRONMENT, Path(named) if named else None)):
        if folder is not None:
            if not folder.is_dir():
                raise TraceError(
                    f"{what}: found {folder}, which is not a folder; allowed is the folder with the traces"
                )
            return folder
    candidates = [Path("..") / DATA_DEFAULT]
    if config is not None:
        folder = config.resolve().parent
        candidates += [ancestor.parent / DATA_DEFAULT for ancestor in (folder, *folder.parents[:ANCESTORS_MAX])]
    return next((candidate for candidate in candidates if candidate.is_dir()), None)


def missing_traces(names: Sequence[str], folder: Path | None, *, generated: bool = True) -> TraceMissing:
    """The one error for all traces that were not found in a data folder (or without one); ``generated``: whether
    generated demand can take their place.
    """
    looked = f"looked in {folder}" if folder is not None else f"no data folder: give --data DIR or {DATA_ENVIRONMENT}"
    instead = "; --synthetic uses generated demand instead" if generated else ""
    return _missing(names, f"; {looked}{instead}")


def _missing(names: Sequence[str], advice: str) -> TraceMissing:
    parts = []
    for name in names:
        known = known_trace(name)
        published = f" (published by {known.publisher}: {known.title}, {known.url})" if known else ""
        parts.append(f"{name}{published}")
    what = "trace is missing" if len(parts) == 1 else "traces are missing"
    return TraceMissing(f"{what}: {'; '.join(parts)}{advice}", names)


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """The file as text; what goes wrong on the way is a :class:`TraceError` that names it.

    Bytes that are not UTF-8 are replaced: comments may hold any, and in a number they are the parser's to report.
    """
    try:
        with path.open("rb") as raw:
            start = raw.read(2)
            raw.seek(0)
            plain = gzip.GzipFile(fileobj=raw) if start == b"\x1f\x8b" else raw
            with io.TextIOWrapper(plain, encoding="utf-8-sig", errors="replace", newline="") as text:
                yield text
    except FileNotFoundError:
        raise _missing([str(path)], "") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: its gzip data is damaged or cut off ({error}); get the file again") from error
    except OSError as error:
        raise TraceError(f"{path}: can't be read: {error.strerror or error}") from error


def wrong(path: Path, line: int, found: object, allowed: str) -> TraceError:
    """The error of a malformed line; what was found is cut to a readable length."""
    shown = repr(found)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return TraceError(f"{path}, line {line}: found {shown}, allowed is {allowed}")


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
