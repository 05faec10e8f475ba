//! The expressions that this process has read, so that a million schedules with a few hundred of them
//! read each one once.
//!
//! A [`Cron`] has the name of its zone, and no data of it. Each search for a date asks `jiff` for
//! the data, which reads them again after some minutes. So what is kept here never gets old.

use std::collections::HashMap;

use tourbillon::{Cron, CronError};

use crate::sync::Mutex;

/// The most expressions that are kept. One more empties the cache: whoever uses more in turn reads
/// each one again, as without it.
const MOST: usize = 1_024;

/// The length of expression and zone from which on they are not kept.
const LONG: usize = 256;

/// The expressions that were read, each with its zone.
#[derive(Default)]
struct Kept(HashMap<(Box<str>, Box<str>), Cron>);

static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

/// Reads an expression in a zone, or takes it from those that were read. Refusals are not kept: data
/// of the zone may come.
pub(super) fn read(expression: &str, zone: &str) -> Result<Cron, CronError> {
    if expression.len() + zone.len() > LONG {
        return Cron::new(expression, zone);
    }
    let key = (Box::from(expression), Box::from(zone));
    // Nobody waits here. Another thread may hold the lock, and in a forked copy of the process it
    // would hold it for ever.
    let found = KEPT.try_lock().and_then(|kept| kept.as_ref()?.get(&key));
    if let Some(cron) = found {
        return Ok(cron);
    }
    let cron = Cron::new(expression, zone)?;
    if let Some(mut kept) = KEPT.try_lock() {
        kept.get_or_insert_default().keep(key, cron.clone());
    }
    Ok(cron)
}

impl Kept {
    fn get(&self, key: &(Box<str>, Box<str>)) -> Option<Cron> {
        self.0.get(key).cloned()
    }

    fn keep(&mut self, key: (Box<str>, Box<str>), cron: Cron) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(key, cron);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(expression: &str) -> (Box<str>, Box<str>) {
        (expression.into(), "UTC".into())
    }

    #[test]
    fn what_was_read_is_kept_by_expression_and_zone() {
        let mut kept = Kept::default();
        let daily = Cron::new("@daily", "UTC").unwrap();
        kept.keep(key("@daily"), daily);
        let found = kept.get(&key("@daily")).expect("it is kept");
        assert_eq!((found.expression(), found.zone()), ("@daily", "UTC"));
        assert!(kept.get(&key("@hourly")).is_none());
        let other = ("@daily".into(), "Europe/Berlin".into());
        assert!(kept.get(&other).is_none());
    }

    #[test]
    fn no_more_than_the_most_are_kept() {
        let mut kept = Kept::default();
        let daily = Cron::new("@daily", "UTC").unwrap();
        for number in 0..3 * MOST {
            kept.keep(key(&number.to_string()), daily.clone());
            assert!(kept.0.len() <= MOST);
            assert!(kept.get(&key(&number.to_string())).is_some());
        }
        assert!(kept.get(&key("0")).is_none());
    }

    #[test]
    fn each_read_is_that_of_its_expression_and_zone() {
        for (expression, zone) in [
            ("0 6 * * *", "UTC"),
            ("0 6 * * *", "Europe/Berlin"),
            ("0 7 * * *", "UTC"),
        ] {
            for _ in 0..3 {
                let cron = read(expression, zone).unwrap();
                assert_eq!((cron.expression(), cron.zone()), (expression, zone));
            }
        }
        for _ in 0..2 {
            assert!(read("nope", "UTC").is_err());
            assert!(read("0 6 * * *", "Mars/Base").is_err());
        }
        let long = format!("0 6 * * {}", "1,".repeat(LONG) + "1");
        assert_eq!(read(&long, "UTC").unwrap().expression(), long);
    }

    #[test]
    fn a_second_read_shares_what_the_first_one_has_read() {
        let first = read("7 6 5 4 *", "UTC").unwrap();
        let place = |cron: &Cron| cron.expression().as_ptr();
        // Other tests may empty it, or hold the lock, at one moment, and not at each.
        let again = (0..1_000).any(|_| {
            let again = read("7 6 5 4 *", "UTC").unwrap();
            place(&again) == place(&first)
                || place(&again) == place(&read("7 6 5 4 *", "UTC").unwrap())
        });
        assert!(again);
    }
}
