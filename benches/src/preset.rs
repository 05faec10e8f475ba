//! What `--targets` runs: the points of the table of targets, within about 40 minutes on two cores and 20 GB.
//!
//! A run of everything with all peers would take hours. So each point has the peers that were the best ones
//! somewhere, a round of W2 is shorter, and the run names all peers that it leaves out.

use std::time::Duration;

use crate::workloads::{Form, Workload};

/// Room for a machine that is slower than the one that it was made on.
pub(crate) const TIME: Duration = Duration::from_secs(45 * 60);

/// A workload with some of its numbers of keys.
#[derive(Debug)]
pub(crate) struct Part {
    workload: &'static str,
    pub(crate) keys: &'static [u64],
    systems: &'static [&'static str],
    /// The number of the only case that is run, if it is not all of them.
    case: Option<usize>,
    /// How much a round does in the full form, if it is less than usual.
    amount: Option<u64>,
}

const fn part(
    workload: &'static str,
    keys: &'static [u64],
    systems: &'static [&'static str],
) -> Part {
    Part {
        workload,
        keys,
        systems,
        case: None,
        amount: None,
    }
}

impl Part {
    const fn case(mut self, case: usize) -> Self {
        self.case = Some(case);
        self
    }

    const fn amount(mut self, amount: u64) -> Self {
        self.amount = Some(amount);
        self
    }

    pub(crate) fn has(&self, system: &str) -> bool {
        self.systems.contains(&system)
    }

    pub(crate) fn has_case(&self, number: usize) -> bool {
        self.case.is_none_or(|only| only == number)
    }
}

/// Ours by key, and the peers that were the best ones where keys are not touched.
const BY_KEY: &[&str] = &[
    "tourbillon",
    "tourbillon-map",
    "heap",
    "hash-wheel",
    "netty",
];

const PARTS: &[Part] = &[
    part(
        "W1",
        &[0, 1_000_000],
        &[
            "tourbillon-timer",
            "heap",
            "hash-wheel",
            "tokio-sleep",
            "netty",
            "go",
        ],
    ),
    part(
        "W1",
        &[10_000_000],
        &[
            "tourbillon-timer",
            "heap",
            "hash-wheel",
            "tokio-sleep",
            "netty",
        ],
    ),
    part(
        "W1k",
        &[0, 1_000_000],
        &[
            "tourbillon",
            "tourbillon-map",
            "DelayQueue",
            "heap",
            "hash-wheel",
            "tokio-sleep",
            "netty",
            "go",
        ],
    ),
    part(
        "W1k",
        &[10_000_000],
        &[
            "tourbillon",
            "tourbillon-map",
            "heap",
            "hash-wheel",
            "tokio-sleep",
            "netty",
        ],
    ),
    part("W1x", &[1_000_000, 10_000_000], BY_KEY),
    part(
        "W2",
        &[100_000, 1_000_000],
        &[
            "tourbillon",
            "tourbillon-map",
            "heap",
            "hash-wheel",
            "tokio-sleep",
            "netty",
            "go",
            "bare",
        ],
    )
    .amount(1_000_000),
    part(
        "W2",
        &[10_000_000],
        &[
            "tourbillon",
            "tourbillon-map",
            "heap",
            "tokio-sleep",
            "netty",
            "bare",
        ],
    )
    .amount(1_000_000),
    // As long as always: a heap keeps what was stopped, so short rounds would favour it.
    part(
        "W3",
        &[0],
        &["tourbillon", "tourbillon-map", "heap", "netty"],
    ),
    part("W4", &[0], &["tourbillon", "tourbillon-map", "netty"]),
    part(
        "W4i",
        &[0],
        &["tourbillon", "tourbillon-map", "hash-wheel", "netty", "go"],
    ),
    part("W4h", &[0], &["tourbillon-timer", "heap", "hash-wheel"]),
    part("W5", &[0], &["tourbillon", "tourbillon-map", "DelayQueue"]),
    part("W6", &[1_000_000], &["tourbillon", "tourbillon-map"]),
    part(
        "W7",
        &[10_000_000],
        &["tourbillon", "tourbillon-map", "heap", "hash-wheel"],
    ),
    part("W8", &[10_000_000], BY_KEY).case(0),
    part("W8x", &[10_000_000], BY_KEY).case(0),
    part("W9", &[10_000_000], &["tourbillon", "tourbillon-map"]),
    part("S2", &[10_000_000], &["tourbillon-map", "heap", "bare"]),
    part(
        "S4",
        &[100_000],
        &["tourbillon-sleep", "tourbillon-sleep-inline", "tokio-sleep"],
    ),
];

/// The numbers of keys of a workload. Empty if it has no part in the run.
pub(crate) fn keys(workload: &Workload) -> Vec<u64> {
    let parts = PARTS.iter().filter(|part| part.workload == workload.name);
    parts.flat_map(|part| part.keys.iter().copied()).collect()
}

/// The part that a point belongs to. With another number of keys, the first one of its workload.
pub(crate) fn find(workload: &Workload, keys: u64) -> Option<&'static Part> {
    let mut parts = PARTS.iter().filter(|part| part.workload == workload.name);
    let first = parts.clone().next();
    parts.find(|part| part.keys.contains(&keys)).or(first)
}

/// How much a round does, in the workload's own measure.
pub(crate) fn amount(workload: &Workload, form: Form) -> u64 {
    let usual = workload.amount_in(form);
    let amount = find(workload, 0).and_then(|part| part.amount);
    match amount {
        Some(amount) if form == Form::Full => amount.min(usual),
        _ => usual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems;
    use crate::workloads;

    #[test]
    fn every_part_names_what_exists() {
        for part in PARTS {
            let workload = workloads::find(part.workload).expect(part.workload);
            for keys in part.keys {
                let form = workload.keys_in(Form::Full);
                assert!(form.contains(keys), "{} {keys}", part.workload);
            }
            for name in part.systems {
                let mut of_name = systems::named(name);
                assert!(
                    of_name.any(|system| system.serves(workload).is_some()),
                    "{name} does no {}",
                    part.workload
                );
            }
        }
    }

    #[test]
    fn a_point_has_the_peers_of_its_size() {
        let touch = workloads::find("W2").expect("a workload");
        let has = |keys, system| find(touch, keys).is_some_and(|part| part.has(system));
        assert!(has(1_000_000, "go") && !has(10_000_000, "go"));
        assert!(has(1_000, "go"), "another size is like the first");
        assert_eq!(keys(touch), [100_000, 1_000_000, 10_000_000]);
        assert_eq!(amount(touch, Form::Full), 1_000_000);
        assert_eq!(amount(touch, Form::Smoke), 1_000);
        let churn = workloads::find("churn").expect("a workload");
        assert!(find(churn, 0).is_none() && keys(churn).is_empty());
    }
}
