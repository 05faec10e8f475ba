//! The names and metrics of the measurements of durable timers and leases. `servers` carries them
//! out.

use crate::workload::{By, Metric, Workload};

const LATE: &[Metric] = &[
    Metric::less("p50", "ms"),
    Metric::less("p99", "ms"),
    Metric::less("p99.9", "ms"),
    Metric::less("max", "ms"),
];
const RATE: &[Metric] = &[Metric::more("", "/s")];
const TAKEOVER: &[Metric] = &[
    Metric::less("claimed ones ran again after kill -9", "s"),
    Metric::less("lateness of unclaimed ones, p50", "ms"),
    Metric::less("p99", "ms"),
    Metric::less("p99.9", "ms"),
    Metric::less("max", "ms"),
];
const IDLE: &[Metric] = &[
    Metric::less("reads", "/s"),
    Metric::less("writes", "/s"),
    Metric::less("CPU", "% of a core"),
    Metric::less("a poll, p50", "ms"),
    Metric::less("a poll, p99", "ms"),
];
const OPEN: &[Metric] = &[
    Metric::more("runs", "/s"),
    Metric::less("a poll, p50", "ms"),
    Metric::less("a poll, p99", "ms"),
    Metric::less("a poll, max", "ms"),
];
const MANY: &[Metric] = &[
    Metric::less("CPU of the program", "% of a core"),
    Metric::less("CPU of the server", "% of a core"),
    Metric::less("a poll, p50", "ms"),
    Metric::less("a poll, max", "ms"),
    Metric::less("lateness of timers 3 s ahead, p50", "ms"),
    Metric::less("max", "ms"),
];
const INDEX: &[Metric] = &[
    Metric::more("schedules", "/s"),
    Metric::less("CPU of the server for each", "us"),
    Metric::less("samples of a writer that waits for a page", "%"),
    Metric::less("size of the index for each", "bytes"),
];
const KEPT: &[Metric] = &[
    Metric::more("acquired by 4 threads", "/s"),
    Metric::less("memory of a lease", "bytes"),
    Metric::less("lost", ""),
    Metric::more("held at the end", ""),
    Metric::more("renewals", "/s"),
    Metric::less("failed attempts", ""),
    Metric::less("late", ""),
    Metric::more("least that was left", "s"),
    Metric::more("renewals in a round trip", ""),
    Metric::less("reads of the server", ""),
    Metric::less("CPU time of this process for a renewal", "us"),
    Metric::less("CPU time of this process", "% of a core"),
    Metric::less("CPU time of the server for a renewal", "us"),
    Metric::more("released by 4 threads", "/s"),
];
const CYCLE: &[Metric] = &[
    Metric::less("both together", "us"),
    Metric::less("series that are armed", ""),
    Metric::less("series that are armed while it is held", ""),
];
const KILLED: &[Metric] = &[
    Metric::less("rest of its lease", "ms"),
    Metric::less("after that, the next one has it", "ms"),
];
const SHARED: &[Metric] = &[
    Metric::more("held by all", "/s"),
    Metric::less("largest by smallest share", ""),
    Metric::less("longest wait", "ms"),
];

/// A line for each measurement: its name, its metrics, and what it is.
macro_rules! measurements {
    ($($name:literal $metrics:path: $about:literal;)+) => {
        /// D of durable timers, L of leases.
        pub(crate) const ALL: &[Workload] =
            &[$(Workload {
                name: $name,
                about: $about,
                metrics: $metrics,
                by: By::Server,
                ..Workload::DEFAULT
            },)+];
    };
}

measurements! {
    "D1" LATE: "lateness at 2,000 timers a second";
    "D2" RATE: "schedules a second, beside plain SQL";
    "D3" RATE: "runs a second, beside other job queues on request";
    "D4" RATE: "schedules and runs a second on SQLite, beside plain SQL";
    "D5" TAKEOVER: "takeover of the timers of a killed process";
    "D6" IDLE: "cost of an idle process";
    "D7" LATE: "lateness beside many timers that are due at one instant in a paced queue";
    "D8" RATE: "calls and runs a second beside many stored timers";
    "D9" OPEN: "runs and polls beside a transaction that has written and stays open";
    "D10" MANY: "cost and lateness of a node with many queues";
    "D11" INDEX: "what the index for many queues costs writers";
    "D12" RATE: "five keys that one caller moves, by quarters of the time";
    "L1" KEPT: "many leases that are kept";
    "L2" CYCLE: "lock and unlock of one name";
    "L3" RATE: "guards that are dropped, with a round trip of 10 ms";
    "L4" KILLED: "a holder is killed while another one waits";
    "L5" SHARED: "four processes compete for one lock";
}
