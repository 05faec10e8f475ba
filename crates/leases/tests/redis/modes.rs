//! Read-write locks and permits on Redis servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kit::wait::until;
use kit::wakes::{Wakes, poll};
use tourbillon_leases::{
    Acquired, Claim, Holding, Leases, LockPaging, Mode, Outcome, RedisStore, Released, Renewal,
    Secret, StoreError,
};

use crate::calls::{Calls, wait};
use crate::cluster::cluster;
use crate::cluster_url::{Move, names_of, store_at, url};
use crate::holding::acquire_before;
use crate::mode_model::{
    Choices, ModeWorld, Seen, a_wait_that_is_over_reserves_nothing, compare,
    grants_wake_the_next_caller,
};

use chaos::servers::redis::Server;

const LIMIT: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(30);
const MS: Duration = Duration::from_millis(1);
const PERMIT: Mode = Mode::Permit { of: 2 };

/// A store that grants at once.
fn store(server: &Server) -> RedisStore {
    let builder = RedisStore::builder(&server.url()).durable();
    builder.longest_lease(8 * LEASE).build().unwrap()
}

fn ask(store: &RedisStore, owner: &str, mode: Mode) -> Result<Acquired, StoreError> {
    let claim = Claim::new("x", owner, Secret::new(owner), LEASE);
    store.acquire(&claim.in_mode(mode), LIMIT)
}

/// Asks for what has to be free.
#[track_caller]
fn granted(store: &RedisStore, owner: &str, mode: Mode) -> (u64, u32) {
    match ask(store, owner, mode) {
        Ok(Acquired::Granted { token, place }) => (token, place),
        other => panic!("{owner}: {other:?}"),
    }
}

#[track_caller]
fn held(answer: Result<Acquired, StoreError>) -> Duration {
    match answer {
        Ok(Acquired::Held { remaining }) => remaining,
        other => panic!("{other:?}"),
    }
}

fn renew(store: &RedisStore, owner: &str, mode: Mode) -> Outcome {
    let renewal = Renewal::new("x", Secret::new(owner), LEASE).in_mode(mode);
    let to = store.destination("x");
    store.renew(to, &[renewal], LIMIT).unwrap().remove(0)
}

fn release(store: &RedisStore, owner: &str, mode: Mode) -> Released {
    let held = Holding::new("x", Secret::new(owner)).in_mode(mode);
    let to = store.destination("x");
    let mut released = store.release_many(to, &[held], LIMIT).unwrap();
    released.remove(0).unwrap()
}

struct OnServer {
    store: RedisStore,
    start: Instant,
}

impl ModeWorld for OnServer {
    fn store(&self) -> &dyn tourbillon_leases::LeaseStore {
        &self.store
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn pass(&self, time: Duration) {
        thread::sleep(time);
    }

    fn slack(&self) -> Duration {
        10 * MS
    }
}

fn on_server(server: &Server) -> OnServer {
    OnServer {
        store: store(server),
        // Long enough ago for all that has waited.
        start: Instant::now().checked_sub(100 * LEASE).unwrap(),
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn random_calls_are_answered_as_by_a_list_of_holders() {
    let server = Server::start();
    let seen = compare(
        &on_server(&server),
        4_711,
        Choices {
            steps: (12_000, 60),
            leases: &[LEASE, 2 * LEASE],
            waits: 6,
            passes: (&[35 * MS], 20),
        },
    );
    println!("{seen:?}");
    assert!(seen.steps >= 10_000, "{seen:?}");
    let Seen {
        granted,
        held,
        joined,
        places_again,
        behind_others,
        ..
    } = seen;
    for number in [granted, held, joined, places_again, behind_others] {
        assert!(number >= 100, "{seen:?}");
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn random_calls_with_leases_that_run_out_are_answered_as_by_a_list_of_holders() {
    let server = Server::start();
    let seen = compare(
        &on_server(&server),
        1_789,
        Choices {
            steps: (2_000, 40),
            leases: &[150 * MS, 400 * MS, LEASE],
            waits: 15,
            passes: (&[30 * MS, 200 * MS, 500 * MS], 60),
        },
    );
    println!("{seen:?}");
    assert!(seen.run_out >= 20 && seen.joined >= 100, "{seen:?}");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn all_waiting_readers_of_all_processes_get_in_by_the_announcement() {
    let server = Server::start();
    // They do not ask again of themselves.
    let [one, other] = [(); 2].map(|()| {
        let builder = Leases::builder(store(&server)).poll(LEASE);
        builder.build().unwrap()
    });
    let writer = one.lock("x").wait().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let readers: Vec<_> = (0..8)
        .map(|at| {
            let leases = if at % 2 == 0 {
                one.clone()
            } else {
                other.clone()
            };
            let count = Arc::clone(&count);
            thread::spawn(move || {
                let guard = leases.lock("x").shared().wait().unwrap();
                count.fetch_add(1, SeqCst);
                // Each one waits for all others: they have the lock together.
                until("all are in", || count.load(SeqCst) == 8);
                guard.release().wait().unwrap();
            })
        })
        .collect();
    until("they wait", || {
        let waiting = |leases: &Leases| leases.stats().waiting == 4;
        let noted = server.cli(&["HEXISTS", "tourbillon:{x}:lock", "next"]);
        waiting(&one) && waiting(&other) && noted == "(integer) 1"
    });
    thread::sleep(50 * MS);
    let start = Instant::now();
    writer.release().wait().unwrap();
    readers
        .into_iter()
        .for_each(|reader| reader.join().unwrap());
    assert!(start.elapsed() < LEASE / 3, "{:?}", start.elapsed());
}

/// A caller that has waited for so long.
fn waiter(owner: &str, mode: Mode, waited: Duration) -> Claim<'_> {
    let claim = Claim::new("x", owner, Secret::new(owner), LEASE).in_mode(mode);
    claim.waiting().waited(waited)
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn each_permit_that_is_released_is_announced_while_several_callers_wait() {
    let server = Server::start();
    let [one, other] = [(); 2].map(|()| store(&server));
    for owner in ["a", "b"] {
        granted(&one, owner, PERMIT);
    }
    // Another caller of this store has waited for less, and so has written nothing.
    let first = waiter("c", PERMIT, 40 * MS);
    held(other.acquire(&first, LIMIT));
    held(other.acquire(&waiter("f", PERMIT, 30 * MS), LIMIT));
    server.cli(&["CONFIG", "RESETSTAT"]);
    let announced = || {
        let stats = server.cli(&["INFO", "commandstats"]);
        let calls = stats.split("cmdstat_publish:calls=").nth(1);
        calls.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    };
    release(&one, "a", PERMIT);
    assert_eq!(announced(), 1);
    let taken = other.acquire(&first, LIMIT);
    assert!(matches!(taken, Ok(Acquired::Granted { place: 0, .. })));
    release(&one, "b", PERMIT);
    assert_eq!(announced(), 2);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn readers_that_come_all_the_time_do_not_keep_a_writer_out() {
    let server = Server::start();
    let ends = Arc::new(AtomicBool::new(false));
    let writing = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..3)
        .map(|at| {
            let leases = Leases::new(store(&server)).unwrap();
            let (ends, writing) = (Arc::clone(&ends), Arc::clone(&writing));
            thread::spawn(move || {
                let mut last = 0;
                while !ends.load(SeqCst) {
                    let guard = leases.lock("x").shared().wait().unwrap();
                    assert!(!writing.load(SeqCst), "a reader beside the writer");
                    assert!(guard.token() >= last);
                    last = guard.token();
                    thread::sleep((20 + 10 * at) * MS);
                    guard.release().wait().unwrap();
                }
            })
        })
        .collect();
    let leases = Leases::new(store(&server)).unwrap();
    let mut last = 0;
    for _ in 0..5 {
        let guard = leases.lock("x").within(LEASE).wait().unwrap();
        writing.store(true, SeqCst);
        assert!(guard.token() > last);
        last = guard.token();
        thread::sleep(5 * MS);
        writing.store(false, SeqCst);
        guard.release().wait().unwrap();
        thread::sleep(30 * MS);
    }
    ends.store(true, SeqCst);
    readers
        .into_iter()
        .for_each(|reader| reader.join().unwrap());
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_writer_that_gives_up_no_longer_keeps_readers_out() {
    let server = Server::start();
    let writing = Leases::new(store(&server)).unwrap();
    let reading = Leases::builder(store(&server)).poll(LEASE).build().unwrap();
    let reader = reading.lock("x").shared().wait().unwrap();
    let asked = || server.cli(&["HEXISTS", "tourbillon:{x}:lock", "asked"]) == "(integer) 1";
    let writer = {
        let leases = writing.clone();
        thread::spawn(move || leases.lock("x").within(300 * MS).wait())
    };
    until("it waits", asked);
    assert!(reading.lock("x").shared().at_once().wait().is_err());
    assert!(writer.join().unwrap().is_err());
    until("the server hears that it left", || !asked());
    assert!(reading.lock("x").shared().at_once().wait().is_ok());
    reader.release().wait().unwrap();
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_caller_that_gives_up_leaves_the_claims_of_other_stores() {
    let server = Server::start();
    let [one, other] = [(); 2].map(|()| store(&server));
    // Of those who wait for a permit of another number, or alone.
    for wanted in [Mode::Exclusive, Mode::Permit { of: 3 }] {
        granted(&one, "a", Mode::Shared);
        held(one.acquire(&waiter("w", wanted, 40 * MS), LIMIT));
        held(other.acquire(&waiter("v", wanted, 40 * MS), LIMIT));
        other.leave("x", "v", LIMIT).unwrap();
        held(ask(&other, "b", Mode::Shared));
        one.leave("x", "w", LIMIT).unwrap();
        // Also one who asks after another one. It has to ask again in time.
        let left = held(one.acquire(&waiter("w", wanted, 40 * MS), LIMIT));
        assert!(left <= Claim::RECENT * 2 / 3, "{left:?}");
        held(other.acquire(&waiter("v", wanted, 40 * MS), LIMIT));
        one.leave("x", "w", LIMIT).unwrap();
        held(ask(&other, "b", Mode::Shared));
        release(&one, "a", Mode::Shared);
        server.cli(&["DEL", "tourbillon:{x}:lock"]);
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn processes_of_the_earlier_version_find_readers_and_permits_held() {
    let server = Server::start();
    let store = store(&server);
    for mode in [Mode::Shared, PERMIT] {
        granted(&store, "a", mode);
        let renewal = Renewal::new("x", Secret::new("a"), 2 * LEASE).in_mode(mode);
        let to = store.destination("x");
        assert_eq!(
            store.renew(to, &[renewal], LIMIT),
            Ok(vec![Outcome::Renewed])
        );
        let answer = acquire_before(&server, "x", "old:1", 0);
        assert_eq!(answer[0], 0);
        assert!(answer[1] > 45_000, "{answer:?}");
        assert_eq!(release(&store, "a", mode), Released::Released);
    }
    // And the other way round.
    assert_eq!(acquire_before(&server, "x", "old:2", 50)[0], 1);
    held(ask(&store, "a", Mode::Shared));
    held(ask(&store, "a", PERMIT));
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn no_two_of_several_processes_have_one_place() {
    let server = Server::start();
    let places: Arc<[AtomicBool; 3]> = Arc::default();
    let grants = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..6)
        .map(|_| {
            let leases = Leases::new(store(&server)).unwrap();
            let (places, grants) = (Arc::clone(&places), Arc::clone(&grants));
            thread::spawn(move || {
                for _ in 0..40 {
                    let guard = leases.lock("x").permit_of(3).wait().unwrap();
                    let place = &places[guard.place() as usize];
                    assert!(!place.swap(true, SeqCst), "a place was given twice");
                    grants.fetch_add(1, SeqCst);
                    thread::sleep(MS);
                    place.store(false, SeqCst);
                    guard.release().wait().unwrap();
                }
            })
        })
        .collect();
    workers
        .into_iter()
        .for_each(|worker| worker.join().unwrap());
    assert_eq!(grants.load(SeqCst), 240);
    assert_eq!(
        server.cli(&["EXISTS", "tourbillon:{x}:holders"]),
        "(integer) 0"
    );
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_server_that_lost_its_data_grants_no_mode() {
    let mut server = Server::start();
    let guarded = RedisStore::builder(&server.url()).longest_lease(LEASE);
    let guarded = guarded.build().unwrap();
    let is_emptied = |answer| matches!(answer, Err(StoreError::Emptied { .. }));
    for mode in [Mode::Exclusive, Mode::Shared, PERMIT] {
        assert!(is_emptied(ask(&guarded, "a", mode)), "{mode}");
    }
    assert_eq!(
        server.cli(&["EXISTS", "tourbillon:{x}:lock"]),
        "(integer) 0"
    );
    // The wait is over.
    let marker = "tourbillon:{0}:marker";
    let grants = |server: &Server| {
        let found = server.cli(&["GET", marker]).replace('"', "");
        let fields: Vec<&str> = found.split(' ').collect();
        let over = [fields[0], "0", fields[2], fields[3]].join(" ");
        server.cli(&["SET", marker, &over]);
    };
    grants(&server);
    granted(&guarded, "a", Mode::Shared);
    // It restarts with nothing. Also those who would join wait.
    server.restart();
    until("it is seen", || match ask(&guarded, "b", Mode::Shared) {
        Err(StoreError::Unavailable(_)) => false,
        answer => {
            assert!(is_emptied(answer));
            true
        }
    });
    grants(&server);
    granted(&guarded, "b", Mode::Shared);
    server.cli(&["DEL", marker]);
    assert!(is_emptied(ask(&guarded, "c", Mode::Shared)));
    assert!(is_emptied(ask(&guarded, "b", Mode::Shared)));
    assert_eq!(renew(&guarded, "b", Mode::Shared), Outcome::Renewed);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn keys_that_are_lost_or_of_another_type_grant_nothing_that_is_held() {
    let server = Server::start();
    let store = store(&server);
    let (lock, holders) = ("tourbillon:{x}:lock", "tourbillon:{x}:holders");
    assert_eq!(granted(&store, "a", PERMIT).1, 0);
    let (token, place) = granted(&store, "b", PERMIT);
    assert_eq!(place, 1);
    // The set is lost. Nobody knows who holds which place.
    server.cli(&["DEL", holders]);
    assert_eq!(renew(&store, "a", PERMIT), Outcome::NotHeld);
    for again in ["a", "b"] {
        held(ask(&store, again, PERMIT));
    }
    let left = held(ask(&store, "c", PERMIT));
    assert!(left > LEASE / 2 && left <= LEASE, "{left:?}");
    held(ask(&store, "c", Mode::Exclusive));
    let shown = store.holder_of("x", LIMIT).unwrap().unwrap();
    assert_eq!((shown.mode, shown.holders), (PERMIT, 1));
    // The lock is lost.
    server.cli(&["DEL", lock]);
    server.cli(&["ZADD", holders, "99999999999999", "=a"]);
    assert_eq!(renew(&store, "a", PERMIT), Outcome::NotHeld);
    assert_eq!(release(&store, "a", PERMIT), Released::NotHeld);
    // Somebody else has it by now.
    granted(&store, "d", Mode::Exclusive);
    assert_eq!(renew(&store, "a", PERMIT), Outcome::NotHeld);
    assert_eq!(release(&store, "a", PERMIT), Released::NotHeld);
    assert_eq!(server.cli(&["HGET", lock, "owner"]), "\"d\"");
    release(&store, "d", Mode::Exclusive);
    let again = granted(&store, "c", PERMIT);
    assert!(again.0 > token && again.1 == 0);
    assert_eq!(renew(&store, "a", PERMIT), Outcome::NotHeld);
    assert_eq!(release(&store, "c", PERMIT), Released::Released);
    assert_eq!(server.cli(&["EXISTS", lock, holders]), "(integer) 0");
    // Of readers, too: the last one who is known would take the lock from the others.
    granted(&store, "a", Mode::Shared);
    server.cli(&["DEL", holders]);
    for owner in ["a", "b"] {
        held(ask(&store, owner, Mode::Shared));
    }
    held(ask(&store, "c", Mode::Exclusive));
    server.cli(&["DEL", lock]);
    // Other types.
    let refused = |answer| match answer {
        Err(StoreError::Refused(why)) => why.contains("WRONGTYPE"),
        _ => false,
    };
    server.cli(&["SET", lock, "1"]);
    assert!(refused(ask(&store, "a", Mode::Shared)));
    server.cli(&["DEL", lock]);
    granted(&store, "a", Mode::Shared);
    server.cli(&["SET", holders, "1"]);
    assert!(refused(ask(&store, "b", Mode::Shared)));
    assert!(matches!(
        renew(&store, "a", Mode::Shared),
        Outcome::Failed(_)
    ));
    assert_eq!(server.cli(&["HEXISTS", lock, "=b"]), "(integer) 0");
}

/// The time until the end of a holder's lease.
fn end_of(server: &Server, holder: &str) -> Duration {
    let end = server.cli(&["ZSCORE", "tourbillon:{x}:holders", holder]);
    let end = Duration::from_millis(end.replace('"', "").parse().unwrap());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    end.saturating_sub(now)
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_clock_that_is_set_back_keeps_nobody_waiting_for_longer_than_a_lease() {
    let server = Server::start();
    let store = store(&server);
    let (lock, holders) = ("tourbillon:{x}:lock", "tourbillon:{x}:holders");
    for mode in [Mode::Shared, PERMIT] {
        granted(&store, "a", mode);
        granted(&store, "b", mode);
        // As if the clock had been an hour ahead then.
        let hour = 3_600_000.to_string();
        for who in ["=a", "=b"] {
            server.cli(&["ZINCRBY", holders, &hour, who]);
        }
        server.cli(&["PEXPIRE", lock, &hour]);
        // Of those who hold permits, one alone has asked then.
        if mode == PERMIT {
            server.cli(&["ZINCRBY", holders, &format!("-{hour}"), "=b"]);
        }
        for other in [Mode::Exclusive, PERMIT, Mode::Shared] {
            if other != mode || mode == PERMIT {
                let left = held(ask(&store, "c", other));
                assert!(left <= LEASE, "{mode} {other}: {left:?}");
            }
        }
        if mode == PERMIT {
            assert!(end_of(&server, "=a") <= LEASE);
        }
        assert_eq!(renew(&store, "a", mode), Outcome::Renewed);
        for who in ["a", "b"] {
            assert_eq!(release(&store, who, mode), Released::Released);
        }
        assert_eq!(server.cli(&["EXISTS", lock]), "(integer) 0");
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_lease_that_is_extended_after_the_clock_was_set_back_lasts_so_long() {
    let server = Server::start();
    let store = store(&server);
    let (lock, holders) = ("tourbillon:{x}:lock", "tourbillon:{x}:holders");
    for mode in [Mode::Exclusive, Mode::Shared, PERMIT] {
        granted(&store, "a", mode);
        let hour = 3_600_000.to_string();
        if mode != Mode::Exclusive {
            server.cli(&["ZINCRBY", holders, &hour, "=a"]);
        }
        server.cli(&["PEXPIRE", lock, &hour]);
        let longer = Renewal::new("x", Secret::new("a"), 2 * LEASE).in_mode(mode);
        let renewed = store.renew(store.destination("x"), &[longer.never_shortening()], LIMIT);
        assert_eq!(renewed, Ok(vec![Outcome::Renewed]));
        // The refusal cuts what is left.
        let left = held(ask(&store, "w", Mode::Permit { of: 9 }));
        assert!(left > LEASE && left <= 2 * LEASE, "{mode}: {left:?}");
        if mode != Mode::Exclusive {
            assert!(end_of(&server, "=a") <= 2 * LEASE);
        }
        assert_eq!(release(&store, "a", mode), Released::Released);
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn the_set_of_holders_never_stays_forever() {
    let server = Server::start();
    let store = store(&server);
    let holders = "tourbillon:{x}:holders";
    let expires = || !server.cli(&["PTTL", holders]).contains('-');
    granted(&store, "a", PERMIT);
    assert!(expires());
    // The lease of the last holder has run out, and the lock is not gone yet.
    server.cli(&["ZADD", holders, "1", "=a"]);
    held(ask(&store, "b", PERMIT));
    assert_eq!(server.cli(&["ZCARD", holders]), "(integer) 1");
    assert!(expires());
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_full_server_renews_and_releases_and_grants_nothing() {
    let server = Server::start();
    let store = store(&server);
    let long = Claim::new("x", "long", Secret::new("long"), 2 * LEASE).in_mode(PERMIT);
    let short = Claim::new("x", "a", Secret::new("a"), LEASE).in_mode(PERMIT);
    for other in [long, short] {
        store.acquire(&other, LIMIT).unwrap();
    }
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let why = ask(&store, "b", Mode::Permit { of: 3 });
    held(why);
    for (owner, lease) in [("long", 2 * LEASE), ("a", LEASE)] {
        let renewal = Renewal::new("x", Secret::new(owner), lease).in_mode(PERMIT);
        let to = store.destination("x");
        assert_eq!(
            store.renew(to, &[renewal], LIMIT),
            Ok(vec![Outcome::Renewed])
        );
    }
    assert_eq!(release(&store, "a", PERMIT), Released::Released);
    match ask(&store, "b", PERMIT) {
        Err(StoreError::Unavailable(why)) => assert!(why.contains("OOM"), "{why}"),
        other => panic!("{other:?}"),
    }
    let rests = Holding::new("x", Secret::new("long"))
        .in_mode(PERMIT)
        .after(LEASE / 3);
    let to = store.destination("x");
    assert_eq!(
        store.release_many(to, &[rests], LIMIT),
        Ok(vec![Ok(Released::Released)])
    );
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let shown = store.holder_of("x", LIMIT).unwrap().unwrap();
    assert_eq!((&*shown.owner, shown.holders), ("long (released)", 1));
    assert_eq!(granted(&store, "b", PERMIT).1, 1);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn numbers_that_are_out_of_range_are_refused() {
    let server = Server::start();
    let store = store(&server);
    for of in [0, Mode::MOST_PERMITS + 1, u32::MAX] {
        let claims = ["a", "b"].map(|owner| {
            let claim = Claim::new("x", owner, Secret::new(owner), LEASE);
            claim.in_mode(Mode::Permit { of })
        });
        for batch in [&claims[..1], &claims[..]] {
            let to = store.destination("x");
            let answers = store.acquire_many(to, batch, LIMIT);
            for answer in answers.unwrap() {
                match answer {
                    Err(StoreError::Refused(why)) => {
                        assert!(why.contains("from 1 to 10000"), "{why}");
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    assert_eq!(server.cli(&["DBSIZE"]), "(integer) 0");
    let most = Mode::Permit {
        of: Mode::MOST_PERMITS,
    };
    for at in 0..1_000 {
        assert_eq!(granted(&store, &at.to_string(), most).1, at);
    }
    release(&store, "700", most);
    release(&store, "30", most);
    assert_eq!(granted(&store, "new", most).1, 30);
    assert_eq!(granted(&store, "newer", most).1, 700);
    assert_eq!(granted(&store, "newest", most).1, 1_000);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_thousand_readers_are_renewed_one_as_fast_as_the_other() {
    let server = Server::start();
    let store = store(&server);
    let owners: Vec<_> = (0..1_000).map(|at| at.to_string()).collect();
    let to = store.destination("x");
    let renewals: Vec<_> = owners
        .iter()
        .map(|owner| Renewal::new("x", Secret::new(owner), LEASE).in_mode(Mode::Shared))
        .collect();
    // The commands that a renewal makes are the same, however many there are.
    let commands = |count: usize| {
        server.cli(&["CONFIG", "RESETSTAT"]);
        let outcomes = store.renew(to, &renewals[..count], LIMIT).unwrap();
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Renewed));
        let stats = server.cli(&["INFO", "commandstats"]);
        let calls = |line: &str| -> Option<usize> {
            let line = line.strip_prefix("cmdstat_")?;
            let (name, rest) = line.split_once(":calls=")?;
            let own = ["zadd", "zscore", "zrange", "pexpire", "hmget"];
            own.contains(&name)
                .then(|| rest.split(',').next()?.parse().ok())?
        };
        stats.lines().filter_map(calls).sum::<usize>()
    };
    granted(&store, "0", Mode::Shared);
    let one = commands(1);
    for owner in &owners[1..] {
        granted(&store, owner, Mode::Shared);
    }
    assert!(one > 0);
    assert_eq!(commands(1_000), 1_000 * one);
    let shown = store.holder_of("x", LIMIT).unwrap().unwrap();
    assert_eq!((shown.mode, shown.holders), (Mode::Shared, 1_000));
    let listed = store.list("", &LockPaging::first(9), LIMIT).unwrap();
    assert_eq!(listed.locks[0].holder.holders, 1_000);
    for owner in &owners {
        assert_eq!(release(&store, owner, Mode::Shared), Released::Released);
    }
    assert_eq!(server.cli(&["DBSIZE"]), "(integer) 1");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_user_without_the_rights_for_sets_is_told() {
    let server = Server::start();
    let rights = ["~tourbillon:*", "&*", "+@all", "-zadd"];
    server.cli(&[&["ACL", "SETUSER", "locks", "on", ">s3cret"], &rights[..]].concat());
    let url = format!("redis://locks:s3cret@127.0.0.1:{}/0", server.port());
    let store = RedisStore::builder(&url).durable().build().unwrap();
    granted(&store, "a", Mode::Exclusive);
    release(&store, "a", Mode::Exclusive);
    match ask(&store, "a", Mode::Shared) {
        Err(StoreError::Refused(why)) => {
            assert!(why.contains("ZADD") && why.contains("rights"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    // Nothing is held then.
    granted(&store, "a", Mode::Exclusive);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_cluster_shares_names_of_all_nodes() {
    let nodes = cluster();
    let store = store_at(&url(&nodes));
    let lease = Duration::from_secs(10);
    for name in (0..30).map(|at| format!("n{at}")) {
        let claims = ["a", "b", "c"]
            .map(|owner| Claim::new(&name, owner, Secret::new(owner), lease).in_mode(PERMIT));
        let to = store.destination(&name);
        let batch = store.acquire_many(to, &claims, LIMIT).unwrap();
        let places = |answer: &Result<Acquired, StoreError>| match answer {
            Ok(Acquired::Granted { place, .. }) => Some(*place),
            Ok(_) => None,
            Err(error) => panic!("{error}"),
        };
        let places: Vec<_> = batch.iter().map(places).collect();
        assert_eq!(places, [Some(0), Some(1), None]);
        let renewal = Renewal::new(&name, Secret::new("a"), lease).in_mode(PERMIT);
        assert_eq!(
            store.renew(to, &[renewal], LIMIT),
            Ok(vec![Outcome::Renewed])
        );
        assert_eq!(store.holder_of(&name, LIMIT).unwrap().unwrap().holders, 2);
        let release = Holding::new(&name, Secret::new("b")).in_mode(PERMIT);
        assert_eq!(
            store.release_many(to, &[release], LIMIT),
            Ok(vec![Ok(Released::Released)])
        );
    }
    assert_eq!(
        store
            .list("", &LockPaging::first(100), LIMIT)
            .unwrap()
            .locks
            .len(),
        30
    );
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_grant_that_is_repeated_wakes_the_next_caller_again() {
    let server = Server::start();
    grants_wake_the_next_caller(&store(&server), true);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn permits_follow_a_slot_that_moves() {
    let nodes = cluster();
    let store = store_at(&url(&nodes));
    let name = &names_of(0, 1)[0];
    let to = store.destination(name);
    let acquires = |owner: &str| {
        let claim = Claim::new(name, owner, Secret::new(owner), Duration::from_secs(10));
        let asked = store.acquire(&claim.in_mode(PERMIT), LIMIT);
        assert!(matches!(asked, Ok(Acquired::Granted { .. })), "{asked:?}");
    };
    let renews = |owner: &str, limit: Duration| {
        let renewal = Renewal::new(name, Secret::new(owner), Duration::from_secs(10));
        let renewed = store.renew(to, &[renewal.in_mode(PERMIT)], limit);
        renewed.unwrap().remove(0)
    };
    let releases = |owner: &str, rest: Duration| {
        let held = Holding::new(name, Secret::new(owner)).in_mode(PERMIT);
        let released = store.release_many(to, &[held.after(rest)], LIMIT);
        released.unwrap().remove(0)
    };
    // The only holder goes, and its place stays taken. So the set changes its only member.
    acquires("a");
    let moves = Move::begin(name, &nodes[0], &nodes[1]);
    assert_eq!(renews("a", LIMIT), Outcome::Renewed);
    assert_eq!(releases("a", 9_000 * MS), Ok(Released::Released));
    acquires("b");
    // One key has arrived, and the other one has not.
    let port = nodes[1].port().to_string();
    let lock = format!("tourbillon:{{{name}}}:lock");
    let one = ["MIGRATE", "127.0.0.1", &port, &lock, "0", "5000"];
    assert_eq!(nodes[0].cli(&one), "OK");
    let between = renews("b", 1_000 * MS);
    assert!(
        matches!(between, Outcome::Failed(StoreError::Unavailable(_))),
        "{between:?}"
    );
    moves.keys();
    assert_eq!(renews("b", LIMIT), Outcome::Renewed);
    moves.end();
    assert_eq!(renews("b", LIMIT), Outcome::Renewed);
    let shown = store.holder_of(name, LIMIT).unwrap().unwrap();
    assert_eq!((shown.mode, shown.holders), (PERMIT, 2));
    assert_eq!(releases("b", Duration::ZERO), Ok(Released::Released));
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_caller_that_has_a_place_reserves_none_for_its_store() {
    let server = Server::start();
    a_wait_that_is_over_reserves_nothing(&store(&server));
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn who_comes_while_another_caller_leaves_asks_again() {
    let server = Server::start();
    let store = store(&server);
    let wakes = [(); 2].map(|()| Wakes::new());
    let [ear, waker] = wakes.each_ref().map(|wakes| Waker::from(Arc::clone(wakes)));
    let _ear = store.watch("y", &ear);
    until("it listens", || wakes[0].count() > 0);
    // The answer may be there at once.
    let begins = |_| {
        let mut leaves = tourbillon_leases::LeaseStore::leave(&store, "x", "w", LIMIT);
        let is_pending = poll(&mut leaves, &Wakes::new()).is_pending();
        is_pending.then_some(leaves)
    };
    let leaves = (0..1_000).find_map(begins).expect("a call is under way");
    // What it notes now is taken back.
    let _place = store.watch("x", &waker);
    wait(leaves).unwrap();
    assert_eq!(wakes[1].count(), 1);
}
