//! The watchdog for whatever must be kept alive: what its function gets, what it answers, and what
//! becomes of a function that hangs, panics or answers nonsense.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kit::gate::Gate;
use kit::wait::until;
use kit::{quiet, wait};
use tourbillon::{Clock, ManualClock, Time};
use tourbillon_leases::{
    Batch, Destination, Event, KeepAlive, KeepError, KeepGuard, KeepOptions, Loss, Outcome, Steps,
    StoreError, What, blocking,
};

use crate::worlds::{LEASE, MARGIN, MS, S, down, is_lost, march};

type Answer = Result<Vec<Outcome>, StoreError>;

fn stepped(
    seed: u64,
    renew: impl Fn(&Batch<u32>) -> Answer + Send + Sync + 'static,
) -> (KeepAlive<u32>, Steps) {
    let builder = KeepAlive::builder().destination(|key| Destination::new(u64::from(key / 1_000)));
    builder.build_stepped(seed, blocking(renew)).unwrap()
}

fn all_well(batch: &Batch<u32>) -> Answer {
    Ok(vec![Outcome::Renewed; batch.len()])
}

fn keep_all(keep_alive: &KeepAlive<u32>, keys: std::ops::Range<u32>) -> Vec<KeepGuard<u32>> {
    keys.map(|key| keep_alive.keep(key, LEASE).unwrap())
        .collect()
}

fn all_kept(all: &[KeepGuard<u32>]) -> bool {
    all.iter().all(KeepGuard::is_kept)
}

#[test]
fn what_is_kept_is_renewed_after_a_third_of_its_own_lease() {
    for seed in 0..5 {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let own = Arc::clone(&sent);
        let (keep_alive, steps) = stepped(seed, move |batch| {
            let mut sent = own.lock().unwrap();
            for entry in batch.entries() {
                sent.push((*entry.key(), entry.lease()));
            }
            assert_eq!(batch.keys().len(), batch.len());
            assert!(
                batch
                    .keys()
                    .zip(batch.entries())
                    .all(|(key, entry)| key == entry.key())
            );
            assert!(batch.limit() <= batch.entries().map(|one| one.lease()).min().unwrap() / 6);
            all_well(batch)
        });
        let kept: Vec<_> = (1..=5)
            .map(|n| keep_alive.keep(n, n * 10 * S).unwrap())
            .collect();
        steps.advance(300 * S);
        for (kept, n) in kept.iter().zip(1..) {
            assert_eq!(*kept.key(), n);
            assert!(kept.is_kept());
            let of = sent
                .lock()
                .unwrap()
                .iter()
                .filter(|(key, _)| *key == n)
                .count();
            assert_eq!(kept.renewals(), of as u64);
            let mean = 90 / n as usize;
            assert!(of >= mean * 8 / 10 && of <= mean * 11 / 10 + 1, "{n}: {of}");
        }
        assert!(
            sent.lock()
                .unwrap()
                .iter()
                .all(|(key, lease)| *lease == *key * 10 * S)
        );
        assert_eq!(keep_alive.stats().armed, 5);
    }
}

#[test]
fn each_call_gets_the_keys_of_one_destination_and_no_more_than_were_asked_for() {
    let builder = KeepAlive::<u32>::builder()
        .destination(|key| Destination::new(u64::from(key % 3)))
        .batch(7);
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let (keep_alive, steps) = builder
        .build_stepped(
            1,
            blocking(move |batch| {
                count.fetch_add(1, SeqCst);
                assert!((1..=7).contains(&batch.len()));
                let of = batch.destination().get();
                assert!(batch.keys().all(|key| u64::from(key % 3) == of));
                all_well(batch)
            }),
        )
        .unwrap();
    let kept = keep_all(&keep_alive, 0..100);
    assert_eq!(keep_alive.stats().destinations, 3);
    steps.advance(5 * LEASE);
    assert!(all_kept(&kept));
    assert!(calls.load(SeqCst) > 100 / 7 * 13);
}

#[test]
fn each_keep_is_a_generation_of_its_own() {
    let (keep_alive, steps) = stepped(1, all_well);
    let first = keep_alive.keep(7, LEASE).unwrap();
    let second = keep_alive.keep(7, LEASE).unwrap();
    steps.advance(LEASE);
    assert!(first.renewals() >= 2 && second.renewals() >= 2);
    assert_eq!((keep_alive.stats().kept, keep_alive.stats().armed), (2, 2));
    assert_eq!(first.stop(), Ok(()));
    let renewals = second.renewals();
    steps.advance(LEASE);
    assert!(second.renewals() >= renewals + 2);
    // A drop stops as well.
    drop(second);
    steps.advance(LEASE);
    let stats = keep_alive.stats();
    assert_eq!((stats.kept, stats.armed, stats.destinations), (0, 0, 0));
    assert_eq!(stats.lost, 0);
}

#[test]
fn r14_r26_a_function_that_panics_or_answers_too_little_ends_no_series() {
    quiet::hush();
    for seed in 0..3 {
        let calls = AtomicUsize::new(0);
        let (keep_alive, steps) =
            stepped(seed, move |batch| match calls.fetch_add(1, SeqCst) % 9 {
                0 => panic!("wanted"),
                1 => Ok(vec![]),
                2 => Err(StoreError::Refused("not together".to_owned())),
                3 => Err(down()),
                _ => all_well(batch),
            });
        let events = keep_alive.events(100_000);
        let kept = keep_all(&keep_alive, 0..250);
        steps.advance(10 * LEASE);
        assert!(all_kept(&kept));
        assert!(kept.iter().all(|kept| kept.renewals() >= 20));
        let stats = keep_alive.stats();
        assert!(
            stats.failed > 0 && stats.sent_alone > 0 && stats.lost == 0,
            "{stats:?}"
        );
        let errors: Vec<_> = events
            .try_iter()
            .filter_map(|event| match event.what {
                What::Failed { error, .. } => Some(error.to_string()),
                _ => None,
            })
            .collect();
        assert!(
            errors
                .iter()
                .any(|error| error.contains("outcome is missing"))
        );
        assert!(errors.iter().any(|error| error.contains("down")));
        // What comes later is renewed like everything else.
        let next = keep_alive.keep(9_999, LEASE).unwrap();
        steps.advance(2 * LEASE);
        assert!(next.renewals() >= 4);
    }
}

#[test]
fn answers_of_each_key_reach_that_key() {
    let (keep_alive, steps) = stepped(1, |batch| {
        let of = |key: &u32| match key % 4 {
            0 => Outcome::NotHeld,
            1 => Outcome::Failed(down()),
            _ => Outcome::Renewed,
        };
        // One too many is nobody's.
        let mut outcomes: Vec<_> = batch.keys().map(of).collect();
        outcomes.push(Outcome::NotHeld);
        Ok(outcomes)
    });
    let kept = keep_all(&keep_alive, 0..100);
    steps.advance(2 * LEASE);
    for (key, kept) in (0..).zip(kept) {
        let expected = match key % 4 {
            0 => Err(Loss::NotHeld),
            1 => Err(Loss::Expired),
            _ => Ok(()),
        };
        assert_eq!(kept.stop(), expected, "{key}");
    }
    assert_eq!(keep_alive.stats().lost, 50);
}

/// How many of these there are of keys below a thousand.
fn of_bad(heard: &[Event<u32>], what: impl Fn(&What) -> bool) -> usize {
    let of = heard.iter().filter(|event| event.key < 1_000);
    of.filter(|event| what(&event.what)).count()
}

#[test]
fn r26_a_function_that_hangs_for_ever_holds_up_no_other_destination() {
    let hand = ManualClock::new();
    let gate = Gate::default();
    let at_gate = gate.clone();
    let hanging = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&hanging);
    let keep_alive = KeepAlive::<u32>::builder()
        .clock(Clock::manual(&hand))
        .destination(|key| Destination::new(u64::from(key / 1_000)))
        .build(blocking(move |batch| {
            if batch.destination().get() == 0 {
                count.fetch_add(1, SeqCst);
                at_gate.pass();
            }
            all_well(batch)
        }))
        .unwrap();
    let events = keep_alive.events(1_000);
    let bad = keep_all(&keep_alive, 0..10);
    let good = keep_all(&keep_alive, 1_000..1_010);
    let heard = RefCell::new(Vec::new());
    for renewals in 1..=4 {
        hand.advance(12 * S);
        march(&hand, S, "they are renewed", || {
            let renewed = good.iter().all(|kept| kept.renewals() >= renewals);
            renewed && hanging.load(SeqCst) >= 1
        });
        if renewals == 2 {
            // Two thirds of their leases have passed without an answer.
            march(&hand, S, "the others are at risk", || {
                heard.borrow_mut().extend(events.try_iter());
                of_bad(&heard.borrow(), |what| matches!(what, What::AtRisk { .. })) == 10
            });
        }
    }
    gate.crowd(1);
    assert!(all_kept(&good));
    until("the others are lost", || keep_alive.stats().lost == 10);
    // They heard it: attempts that got no answer, the risk once, and the loss.
    let mut heard = heard.into_inner();
    heard.extend(events.try_iter());
    let no_answer = |what: &What| match what {
        What::Failed {
            error: StoreError::Unavailable(why),
            ..
        } => why.contains("no answer within"),
        _ => false,
    };
    assert!(of_bad(&heard, no_answer) >= 1);
    assert!(keep_alive.stats().given_up >= 1);
    assert_eq!(
        of_bad(&heard, |what| matches!(what, What::AtRisk { .. })),
        10
    );
    assert_eq!(
        of_bad(&heard, |what| *what == What::Lost(Loss::Expired)),
        10
    );
    assert!((1..=5).contains(&hanging.load(SeqCst)));
    // What is kept there from now on is renewed as soon as it answers again.
    let next = keep_alive.keep(5, LEASE).unwrap();
    hand.advance(12 * S);
    gate.open();
    march(&hand, 3 * S, "it is renewed", || next.renewals() >= 1);
    drop((bad, good));
}

/// A key whose clone panics when it is told to.
struct Touchy(u32, Arc<AtomicBool>);

impl Clone for Touchy {
    fn clone(&self) -> Self {
        assert!(!self.1.load(SeqCst), "wanted");
        Touchy(self.0, Arc::clone(&self.1))
    }
}

#[test]
fn r26_a_key_that_panics_when_an_answer_is_told_ends_no_series() {
    quiet::hush();
    for seed in 0..5 {
        let touchy = Arc::new(AtomicBool::new(false));
        let (keep_alive, steps) = KeepAlive::<Touchy>::builder()
            .build_stepped(seed, async |batch| Ok(vec![Outcome::Renewed; batch.len()]))
            .unwrap();
        let events = keep_alive.events(10_000);
        let keep = |n| {
            keep_alive
                .keep(Touchy(n, Arc::clone(&touchy)), LEASE)
                .unwrap()
        };
        let kept: Vec<_> = (0..20).map(keep).collect();
        steps.advance(LEASE);
        let before: Vec<_> = kept.iter().map(KeepGuard::renewals).collect();
        events.try_iter().for_each(drop);
        touchy.store(true, SeqCst);
        steps.advance(5 * LEASE);
        touchy.store(false, SeqCst);
        assert!(kept.iter().all(KeepGuard::is_kept));
        let after: Vec<_> = kept.iter().map(KeepGuard::renewals).collect();
        let missed = after.iter().sum::<u64>() - before.iter().sum::<u64>();
        assert_eq!(
            (keep_alive.stats().events_missed, events.len()),
            (missed, 0)
        );
        let before = after;
        steps.advance(3 * LEASE);
        for (kept, before) in kept.iter().zip(before) {
            assert!(kept.is_kept() && kept.renewals() >= before + 7);
        }
        assert!(events.try_iter().count() >= 20 * 7);
    }
}

#[test]
fn a_stop_waits_for_the_call_that_is_under_way_and_is_the_end() {
    let hand = ManualClock::new();
    let gate = Gate::default();
    let (at_gate, calls) = (gate.clone(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&calls);
    let keep_alive = KeepAlive::<u32>::builder()
        .clock(Clock::manual(&hand))
        .build(blocking(move |batch| {
            count.fetch_add(1, SeqCst);
            at_gate.pass();
            all_well(batch)
        }))
        .unwrap();
    let kept = keep_alive.keep(1, LEASE).unwrap();
    hand.advance(12 * S);
    march(&hand, S, "it is sent", || calls.load(SeqCst) == 1);
    gate.crowd(1);
    let (send, stopped) = channel();
    let lost = kept.lost();
    let stopping = thread::spawn(move || send.send(kept.stop()).unwrap());
    until("it is stopped", || keep_alive.stats().kept == 0);
    assert!(stopped.try_recv().is_err());
    gate.open();
    assert_eq!(wait::next(&stopped), Ok(()));
    stopping.join().unwrap();
    assert!(!lost.is_lost());
    hand.advance(3 * LEASE);
    until("nothing is armed", || keep_alive.stats().armed == 0);
    assert_eq!(calls.load(SeqCst), 1);
    // The answer came after the stop.
    assert_eq!(keep_alive.stats().renewed, 0);
}

#[test]
fn what_was_lost_says_so_when_it_is_stopped() {
    let (keep_alive, steps) = stepped(1, |_| Err(down()));
    let events = keep_alive.events(100);
    let kept = keep_alive.keep(1, LEASE).unwrap();
    assert_eq!(kept.remaining(), LEASE - MARGIN);
    steps.advance(LEASE);
    assert!(!kept.is_kept() && kept.remaining().is_zero());
    assert_eq!(kept.lost().channel().try_recv(), Ok(Loss::Expired));
    let text = format!("{kept:?}");
    assert!(
        text.contains("key: 1") && text.contains("remaining: 0ns"),
        "{text}"
    );
    assert_eq!(kept.stop(), Err(Loss::Expired));
    assert_eq!(
        events
            .try_iter()
            .filter(|event| is_lost(&event.what))
            .count(),
        1
    );
}

#[test]
fn a_lease_counts_from_when_it_was_asked_for() {
    let (keep_alive, steps) = stepped(1, all_well);
    steps.advance(100 * S);
    let keep = |sent: Time| KeepOptions::for_lease(LEASE).since(sent);
    let now = keep_alive.now();
    let kept = keep_alive.keep_with(1, &keep(now - 10 * S)).unwrap();
    assert_eq!(kept.remaining(), LEASE - MARGIN - 10 * S);
    // The renewal is due by then, too, also if that has been.
    let overdue = keep_alive.keep_with(2, &keep(now - 20 * S)).unwrap();
    steps.advance(S);
    assert_eq!((kept.renewals(), overdue.renewals()), (0, 1));
    steps.advance(S);
    // Later than now is now.
    let future = keep_alive
        .keep_with(3, &keep(keep_alive.now() + LEASE))
        .unwrap();
    assert_eq!(future.remaining(), LEASE - MARGIN);
    // What had run out before it was kept is lost, and never renewed.
    let late = keep_alive.keep_with(4, &keep(now - LEASE)).unwrap();
    assert!(!late.is_kept());
    assert_eq!(late.lost().loss(), Some(Loss::Expired));
    steps.advance(LEASE);
    assert_eq!(late.renewals(), 0);
    assert_eq!(keep_alive.stats().kept, 3);
    assert_eq!(keep_alive.stats().armed, 3);
}

#[test]
fn feeding_and_the_longest_hold_and_no_renewal() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let (keep_alive, steps) = stepped(1, move |batch| {
        count.fetch_add(batch.len(), SeqCst);
        all_well(batch)
    });
    let keep = || KeepOptions::for_lease(LEASE);
    let fed = keep_alive.keep_with(1, &keep().fed_every(40 * S)).unwrap();
    let capped = keep_alive.keep_with(2, &keep().max_hold(100 * S)).unwrap();
    let fixed = keep_alive.keep_with(3, &keep().without_renewal()).unwrap();
    steps.advance(LEASE);
    assert_eq!(fixed.lost().loss(), Some(Loss::Expired));
    assert_eq!(fixed.renewals(), 0);
    assert!(fed.feed());
    steps.advance(40 * S - MS);
    assert!(fed.is_kept() && capped.is_kept());
    steps.advance(MS);
    assert!(!fed.feed());
    assert_eq!(fed.stop(), Err(Loss::NotFed));
    steps.advance(30 * S);
    assert_eq!(capped.stop(), Err(Loss::HeldTooLong));
    let sent = calls.load(SeqCst);
    assert!(sent > 10);
    steps.advance(3 * LEASE);
    assert_eq!(calls.load(SeqCst), sent);
    let zero = keep_alive.keep_with(4, &keep().fed_every(Duration::ZERO));
    assert!(matches!(zero, Err(KeepError::ZeroFeed)));
    let short = keep_alive.keep(5, 49 * MS);
    assert!(matches!(short, Err(KeepError::TooShort { .. })));
    assert_eq!(keep_alive.stats().armed, 0);
}

#[test]
fn a_watchdog_that_is_closed_keeps_nothing_and_calls_nothing() {
    for seed in 0..5 {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let (keep_alive, steps) = stepped(seed, move |batch| {
            count.fetch_add(1, SeqCst);
            all_well(batch)
        });
        let events = keep_alive.events(10_000);
        let mut kept = keep_all(&keep_alive, 0..20);
        steps.advance(LEASE);
        events.try_iter().for_each(drop);
        kept.truncate(15);
        assert_eq!(keep_alive.close(), 15);
        assert_eq!(keep_alive.close(), 0);
        let sent = calls.load(SeqCst);
        steps.advance(3 * LEASE);
        assert_eq!(calls.load(SeqCst), sent);
        let told: Vec<_> = events.try_iter().collect();
        assert_eq!(told.len(), 15);
        assert!(
            told.iter()
                .all(|event| event.what == What::Lost(Loss::Closed))
        );
        assert!(matches!(keep_alive.keep(1, LEASE), Err(KeepError::Closed)));
        assert!(
            kept.into_iter()
                .all(|kept| kept.stop() == Err(Loss::Closed))
        );
        assert_eq!(keep_alive.stats().armed, 0);
    }
}

#[test]
fn it_is_kept_for_as_long_as_the_answer_lives_and_then_everything_is_gone() {
    struct Gone(Arc<AtomicBool>);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let hand = ManualClock::new();
    let gone = Arc::new(AtomicBool::new(false));
    let mark = Gone(Arc::clone(&gone));
    let keep_alive = KeepAlive::<u32>::builder()
        .clock(Clock::manual(&hand))
        .build(blocking(move |batch| {
            let _ = &mark;
            all_well(batch)
        }))
        .unwrap();
    let kept = keep_alive.clone().keep(1, LEASE).unwrap();
    assert!(format!("{keep_alive:?}").contains("kept: 1"));
    drop(keep_alive);
    hand.advance(12 * S);
    march(&hand, S, "it is renewed", || kept.renewals() == 1);
    let lost = kept.lost();
    drop(kept);
    until("the function is gone", || gone.load(SeqCst));
    assert!(!lost.is_lost());
}

#[test]
fn a_watchdog_that_kept_nothing_is_closed_like_any_other() {
    let keep_alive = KeepAlive::<u32>::builder()
        .build(blocking(all_well))
        .unwrap();
    assert_eq!(keep_alive.stats(), Default::default());
    assert_eq!(keep_alive.close(), 0);
    assert!(matches!(keep_alive.keep(1, LEASE), Err(KeepError::Closed)));
}

#[test]
fn r19_calls_that_come_late_are_counted() {
    let (keep_alive, steps) = stepped(1, all_well);
    let events = keep_alive.events(1_000);
    let kept = keep_all(&keep_alive, 0..10);
    steps.advance(LEASE);
    assert_eq!(keep_alive.stats().late, 0);
    steps.jump_to(steps.now() + 18 * S);
    steps.advance(S);
    assert!(all_kept(&kept));
    assert!(keep_alive.stats().late >= 1);
    let late = events
        .try_iter()
        .filter(|event| matches!(event.what, What::Late { .. }));
    assert_eq!(late.count() as u64, keep_alive.stats().late);
}
