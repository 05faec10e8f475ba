//! What `--targets` runs: the points of the table of targets, within about 50 minutes on two cores
//! and 20 GB.
//!
//! A run of everything with all peers would take hours. So each point, a line of `preset.jsonl`,
//! has the peers that were the best ones somewhere, a round of W2 is shorter, and the run names all
//! peers that it leaves out. A round of W3 is as long as always: a heap keeps what was stopped, so
//! short rounds would favour it.

use std::sync::LazyLock;
use std::time::Duration;

use serde::Deserialize;

use crate::workload::{Form, Workload};

/// Room for a machine that is slower than the one that it was made on.
pub(super) const TIME: Duration = Duration::from_secs(60 * 60);

/// A workload with some of its numbers of keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Part {
    workload: String,
    keys: Vec<u64>,
    systems: Vec<String>,
    /// The number of the only case that is run, if it is not all of them.
    #[serde(default)]
    case: Option<usize>,
    /// How much a round does in the full form, if it is less than usual.
    #[serde(default)]
    amount: Option<u64>,
}

static PARTS: LazyLock<Vec<Part>> = LazyLock::new(|| {
    let lines = include_str!("preset.jsonl").lines();
    let parsed = |line| serde_json::from_str(line).expect("each line is a part");
    lines.map(parsed).collect()
});

impl Part {
    pub(super) fn has(&self, system: &str) -> bool {
        self.systems.iter().any(|name| name == system)
    }

    pub(super) fn has_case(&self, number: usize) -> bool {
        self.case.is_none_or(|only| only == number)
    }
}

fn parts(workload: &Workload) -> impl Iterator<Item = &'static Part> {
    let parts = PARTS.iter();
    parts.filter(move |part| part.workload == workload.name)
}

/// The numbers of keys of a workload. Empty if it has no part in the run.
pub(super) fn keys(workload: &Workload) -> Vec<u64> {
    parts(workload).flat_map(|part| part.keys.clone()).collect()
}

/// The part that a point belongs to. With another number of keys, the first one of its workload.
pub(super) fn find(workload: &Workload, keys: u64) -> Option<&'static Part> {
    let of_keys = parts(workload).find(|part| part.keys.contains(&keys));
    of_keys.or_else(|| parts(workload).next())
}

/// How much a round does, in the workload's own measure.
pub(super) fn amount(workload: &Workload, form: Form) -> u64 {
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
        for part in PARTS.iter() {
            let workload = workloads::find(&part.workload).expect(&part.workload);
            for keys in &part.keys {
                let form = workload.keys_in(Form::Full);
                assert!(form.contains(keys), "{} {keys}", part.workload);
            }
            for name in &part.systems {
                let mut of_name = systems::named(name);
                let does = of_name.any(|system| system.serves(workload).is_some());
                assert!(does, "{name} does no {}", part.workload);
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
