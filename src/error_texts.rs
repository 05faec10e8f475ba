//! All texts of errors, as a user gets them. `UPDATE_EXPECT=1 cargo test error_texts` writes
//! `error_texts.txt` anew; read it before it is committed: a text says what is wrong, and what to
//! do if anything can be done.

use std::error::Error;
use std::fmt::Write;
use std::time::Duration;

use expect_test::expect_file;

use crate::error::{BuildError, ScheduleError, WaitError};
use crate::expiry::{EntryError, InsertError, InsertRefusal, RenameRefusal};
use crate::reentrancy::UnderLockError;
use crate::retry::{GaveUp, RetryError};
use crate::timer::{SleepError, TimeoutError};
use crate::wheel::FullError;

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
    let io = || std::io::Error::other("no thread left");
    let build = [
        BuildError::Tick(Duration::ZERO),
        BuildError::Shards(0),
        BuildError::Stripes {
            stripes: 3,
            shards: 2,
        },
        BuildError::Workers(2_000),
        BuildError::MaxRunning {
            max_running: 1,
            workers: 2,
        },
        BuildError::MaxPending,
        BuildError::MaxPerGroup,
        BuildError::Pace,
        BuildError::Batch,
        BuildError::Concurrency,
        BuildError::Tickers(0),
        BuildError::MaxWorkers {
            max_workers: 1,
            workers: 2,
        },
        BuildError::ThreadName("a\0b".to_owned()),
        BuildError::WorkersOfRuntime,
        BuildError::NotOnRuntime,
        BuildError::RuntimeEnded,
        BuildError::RuntimeRuns,
        BuildError::Forked,
        BuildError::Spawn(io()),
    ];
    add(&mut texts, "BuildError", build);
    let schedule = [
        ScheduleError::Full(()),
        ScheduleError::Closed(()),
        ScheduleError::Closing(()),
        ScheduleError::Occupied(()),
        ScheduleError::ZeroPeriod(()),
        ScheduleError::NoRound(()),
        ScheduleError::PeriodOption(()),
        ScheduleError::UnderLock(()),
        ScheduleError::Forked(()),
    ];
    add(&mut texts, "ScheduleError", schedule);
    let wait = [
        WaitError::WouldDeadlock,
        WaitError::TimedOut,
        WaitError::Forked,
    ];
    add(&mut texts, "WaitError", wait);
    let sleep = [
        SleepError::Full,
        SleepError::Closed,
        SleepError::UnderLock,
        SleepError::Forked,
    ];
    add(&mut texts, "SleepError", sleep);
    let timeout = [
        TimeoutError::Elapsed,
        TimeoutError::Sleep(SleepError::Closed),
    ];
    add(&mut texts, "TimeoutError", timeout);
    let insert = [
        InsertRefusal::Full,
        InsertRefusal::Closed,
        InsertRefusal::Occupied,
        InsertRefusal::GroupFull,
        InsertRefusal::UnderLock,
        InsertRefusal::Forked,
    ];
    add(&mut texts, "InsertRefusal, InsertError", insert);
    let rename = [
        RenameRefusal::NotFound,
        RenameRefusal::Insert(InsertRefusal::Occupied),
    ];
    add(&mut texts, "RenameRefusal, RenameError", rename);
    let refused = InsertError {
        key: (),
        value: (),
        refusal: InsertRefusal::Full,
    };
    let find = [
        EntryError::Make(io()),
        EntryError::Insert(refused),
        EntryError::Recursive(Some(io())),
        EntryError::Closed,
        EntryError::TimedOut,
    ];
    add(&mut texts, "EntryError", find);
    let reasons = [
        (GaveUp::Permanent, 1),
        (GaveUp::Attempts, 3),
        (GaveUp::Time, 3),
        (GaveUp::Budget, 3),
        (GaveUp::Timer, 3),
    ];
    let retry = reasons.map(|(reason, attempts)| RetryError {
        error: io(),
        reason,
        attempts,
        elapsed: Duration::from_secs(2),
    });
    add(&mut texts, "RetryError", retry);
    add(&mut texts, "wheel::FullError", [FullError(())]);
    add(
        &mut texts,
        "reentrancy::UnderLockError",
        [UnderLockError(())],
    );
    expect_file!["error_texts.txt"].assert_eq(&texts);
}
