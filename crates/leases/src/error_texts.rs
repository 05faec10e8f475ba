//! All texts of errors, as a user gets them. `UPDATE_EXPECT=1 cargo test error_texts` writes
//! `error_texts.txt` anew; read it before it is committed: a text says what is wrong, and what to
//! do if anything can be done.

use std::error::Error;
use std::fmt::Write;
use std::io;
use std::time::Duration;

use expect_test::expect_file;

use crate::keep_alive::{BuildError, KeepError, Loss};
use crate::manager::{DetachError, Fence, LeaseTicket, LockError, ReleaseError};
#[cfg(feature = "postgres")]
use crate::postgres::PostgresBuildError;
#[cfg(feature = "redis")]
use crate::redis::RedisBuildError;
use crate::store::StoreError;

/// Adds the values, their texts, and the texts of their sources.
fn add<E: Error>(texts: &mut String, name: &str, errors: impl IntoIterator<Item = E>) {
    writeln!(texts, "\n{name}").unwrap();
    for error in errors {
        writeln!(texts, "{error:?}\n    {error}").unwrap();
        let mut source = error.source();
        while let Some(error) = source {
            writeln!(texts, "    from: {error}").unwrap();
            source = error.source();
        }
    }
}

#[test]
fn the_texts_of_errors_are_those_that_were_read() {
    let mut texts = String::from("Written by the test beside this file.\n");
    let io = || io::Error::other("no thread left");
    let (name, s) = (|| "orders/42".to_owned(), Duration::from_secs(1));
    let down = || StoreError::Unavailable("down".to_owned());
    let build = [
        BuildError::Batch,
        BuildError::Lease {
            lease: s,
            least: 2 * s,
            most: 60 * s,
        },
        BuildError::HolderData {
            bytes: 1_025,
            most: 1_024,
        },
        BuildError::Scheduler(tourbillon::BuildError::Spawn(io())),
    ];
    add(&mut texts, "BuildError", build);
    let lock = [
        LockError::Held {
            name: name(),
            remaining: 7 * s,
        },
        LockError::TimedOut { name: name() },
        LockError::Unanswered {
            name: name(),
            error: down(),
        },
        LockError::EmptyName,
        LockError::LongName {
            start: name(),
            bytes: 1_025,
        },
        LockError::TooShort {
            name: name(),
            lease: s,
            least: 2 * s,
        },
        LockError::TooLong {
            name: name(),
            lease: 61 * s,
            most: 60 * s,
        },
        LockError::ZeroFeed { name: name() },
        LockError::ZeroHold { name: name() },
        LockError::LongerThanLease {
            name: name(),
            at_least: 9 * s,
            lease: s,
        },
        LockError::Permits {
            name: name(),
            of: 0,
        },
        LockError::Renewed { name: name() },
        LockError::Lost {
            name: name(),
            loss: Loss::Expired,
        },
        LockError::Store {
            name: name(),
            error: down(),
        },
        LockError::Closed { name: name() },
        LockError::Stopped { name: name() },
        LockError::Spawn {
            name: name(),
            error: io(),
        },
        LockError::Runtime {
            name: name(),
            error: tourbillon::BuildError::RuntimeEnded,
        },
        LockError::Runtime {
            name: name(),
            error: tourbillon::BuildError::Forked,
        },
    ];
    for error in &lock {
        let named = matches!(error, LockError::EmptyName);
        assert_eq!(error.name(), if named { "" } else { "orders/42" });
    }
    add(&mut texts, "LockError", lock);
    let release = [
        ReleaseError::Lost(Loss::NotHeld),
        ReleaseError::NotHeld,
        ReleaseError::Store(down()),
    ];
    add(&mut texts, "ReleaseError", release);
    add(
        &mut texts,
        "DetachError",
        [DetachError::Lost(Loss::Expired)],
    );
    let losses = [
        Loss::Expired,
        Loss::NotHeld,
        Loss::NotFed,
        Loss::HeldTooLong,
        Loss::Closed,
        Loss::Forked,
    ];
    writeln!(texts, "\nLoss").unwrap();
    for loss in losses {
        writeln!(texts, "{loss:?}\n    {loss}").unwrap();
    }
    let keep = [
        KeepError::TooShort {
            lease: s,
            least: 2 * s,
        },
        KeepError::ZeroFeed,
        KeepError::ZeroHold,
        KeepError::Closed,
        KeepError::Spawn(io()),
        KeepError::Runtime(tourbillon::BuildError::RuntimeEnded),
        KeepError::Runtime(tourbillon::BuildError::Forked),
        KeepError::Forked,
    ];
    add(&mut texts, "KeepError", keep);
    let store = [
        down(),
        StoreError::Refused("no rights".to_owned()),
        StoreError::no_sharing("orders/42"),
        StoreError::Restarted { wait: 30 * s },
        StoreError::Forked,
        StoreError::Emptied {
            wait: 30 * s,
            evicted: false,
        },
        StoreError::Emptied {
            wait: 30 * s,
            evicted: true,
        },
        StoreError::Evicts {
            policy: "allkeys-lru".to_owned(),
        },
    ];
    add(&mut texts, "StoreError", store);
    let fence = Fence::new();
    fence.admit(8).unwrap();
    add(&mut texts, "StaleToken", fence.admit(7).err());
    let tickets = ["", "text", "tourbillon-lease-2,1,a"].map(|text| text.parse::<LeaseTicket>());
    let tickets = tickets.into_iter().map(Result::unwrap_err);
    add(&mut texts, "ParseTicketError", tickets);
    #[cfg(feature = "redis")]
    {
        let redis = [
            RedisBuildError::Url {
                url: "redis:/".to_owned(),
                why: "no host".to_owned(),
            },
            RedisBuildError::Prefix("{".to_owned()),
            RedisBuildError::LongestLease(Duration::ZERO),
            RedisBuildError::TokenLife {
                life: s,
                longest_lease: 60 * s,
            },
            RedisBuildError::TcpKeepalive(Duration::ZERO),
            RedisBuildError::Destinations(0),
        ];
        add(&mut texts, "RedisBuildError", redis);
        #[cfg(feature = "redis-tls")]
        add(
            &mut texts,
            "RedisBuildError, with TLS",
            [RedisBuildError::Tls("no certificate".to_owned())],
        );
    }
    #[cfg(feature = "postgres")]
    {
        let postgres = [
            PostgresBuildError::Url("the URL of the database can't be read: no port".to_owned()),
            PostgresBuildError::Schema {
                name: "pg_x".to_owned(),
                why: "belongs to the database itself".to_owned(),
            },
            PostgresBuildError::LongestLease(Duration::ZERO),
            PostgresBuildError::TokenLife {
                life: s,
                longest_lease: 60 * s,
            },
            PostgresBuildError::Connections(0),
        ];
        add(&mut texts, "PostgresBuildError", postgres);
    }
    // Without the features, the last parts are not there.
    #[cfg(all(feature = "redis-tls", feature = "postgres"))]
    expect_file!["error_texts.txt"].assert_eq(&texts);
}
