"""Load signals from files: traces as CSV, job logs in the Standard Workload Format, and a generator without files.

Readers stream, read gzip whatever the file's name is, and stop at the first malformed line with one error that
names file, line, what was found and what is allowed. Instants are Unix milliseconds as in the file;
:func:`open_signal` turns a trace into demand on an emulation's clock, whose 0 is the instant that its spec names.
"""

from __future__ import annotations

from leasekit.config.traces.csv_reader import Gaps, TimeUnit, read_csv
from leasekit.config.traces.demand import SignalSpec, open_signal, open_signals
from leasekit.config.traces.places import (
    DATA_ENVIRONMENT,
    KNOWN_TRACES,
    KnownTrace,
    TraceError,
    TraceMissing,
    data_dir,
    known_trace,
)
from leasekit.config.traces.swf import JobLoad, SwfJob, swf_job_list, swf_jobs, swf_signal
from leasekit.config.traces.synthetic import BATCH, WEB, SyntheticSettings, synthetic

__all__ = [
    "BATCH",
    "DATA_ENVIRONMENT",
    "KNOWN_TRACES",
    "WEB",
    "Gaps",
    "JobLoad",
    "KnownTrace",
    "SignalSpec",
    "SwfJob",
    "SyntheticSettings",
    "TimeUnit",
    "TraceError",
    "TraceMissing",
    "data_dir",
    "known_trace",
    "open_signal",
    "open_signals",
    "read_csv",
    "swf_job_list",
    "swf_jobs",
    "swf_signal",
    "synthetic",
]
