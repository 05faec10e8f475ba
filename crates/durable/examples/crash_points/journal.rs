//! The answers that a process got, and the runs that it began. Each line is one write to a file that
//! outlives the process.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// One line of a journal. Times are microseconds since 1970.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// A timer was accepted, and is due then.
    Accepted { key: String, due: u64 },
    /// A timer is going to be cancelled: whatever comes of it, it need not run.
    Cancelling { key: String },
    /// The answer, which came then, was `Cancelled`.
    Cancelled { key: String, at: u64 },
    /// The answer, which came then, was `Moved`.
    Moved { key: String, at: u64, due: u64 },
    /// The answer to a cancel was `Running`: no run with a greater number starts.
    Ending { key: String, attempt: u32 },
    /// The process died before the commit that would have made the timer.
    Never { key: String },
    /// A run began then, and its claim was certainly live.
    Ran {
        key: String,
        at: u64,
        attempt: u32,
        token: String,
    },
    /// A run began after the term had ended, and did nothing.
    Unheld { key: String },
    /// Others have declared the node of this process gone.
    Gone,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Accepted { key, due } => write!(f, "accepted {key} {due}"),
            Entry::Cancelling { key } => write!(f, "cancelling {key}"),
            Entry::Cancelled { key, at } => write!(f, "cancelled {key} {at}"),
            Entry::Moved { key, at, due } => write!(f, "moved {key} {at} {due}"),
            Entry::Ending { key, attempt } => write!(f, "ending {key} {attempt}"),
            Entry::Never { key } => write!(f, "never {key}"),
            Entry::Ran {
                key,
                at,
                attempt,
                token,
            } => write!(f, "ran {key} {at} {attempt} {token}"),
            Entry::Unheld { key } => write!(f, "unheld {key}"),
            Entry::Gone => f.write_str("gone"),
        }
    }
}

impl Entry {
    fn parse(line: &str) -> Option<Entry> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().ok();
        let entry = match words[..] {
            ["accepted", key, due] => Entry::Accepted {
                key: key.to_owned(),
                due: number(due)?,
            },
            ["cancelling", key] => Entry::Cancelling {
                key: key.to_owned(),
            },
            ["cancelled", key, at] => Entry::Cancelled {
                key: key.to_owned(),
                at: number(at)?,
            },
            ["moved", key, at, due] => Entry::Moved {
                key: key.to_owned(),
                at: number(at)?,
                due: number(due)?,
            },
            ["ending", key, attempt] => Entry::Ending {
                key: key.to_owned(),
                attempt: attempt.parse().ok()?,
            },
            ["never", key] => Entry::Never {
                key: key.to_owned(),
            },
            ["ran", key, at, attempt, token] => Entry::Ran {
                key: key.to_owned(),
                at: number(at)?,
                attempt: attempt.parse().ok()?,
                token: token.to_owned(),
            },
            ["unheld", key] => Entry::Unheld {
                key: key.to_owned(),
            },
            ["gone"] => Entry::Gone,
            _ => return None,
        };
        Some(entry)
    }
}

pub(crate) fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

pub(crate) fn now() -> u64 {
    micros(SystemTime::now())
}

/// The journal of one process.
#[derive(Debug)]
pub(crate) struct Journal(File);

impl Journal {
    pub(crate) fn create(folder: &Path, name: &str) -> io::Result<Self> {
        let path = folder.join(format!("{name}.journal"));
        let file = File::options().append(true).create_new(true).open(path)?;
        Ok(Journal(file))
    }

    /// Writes a line. What is written is in the hands of the system, and outlives the process.
    pub(crate) fn write(&self, entry: &Entry) {
        let line = format!("{entry}\n");
        // One call for the whole line: the lines of several threads do not mix.
        let written = (&self.0).write(line.as_bytes());
        assert_eq!(
            written.ok(),
            Some(line.len()),
            "the journal can't be written"
        );
    }
}

/// The lines of all journals.
pub(crate) fn read(folder: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        if path
            .extension()
            .is_none_or(|extension| extension != "journal")
        {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        for line in text.lines() {
            let unreadable = || io::Error::other(format!("{}: {line}", path.display()));
            entries.push(Entry::parse(line).ok_or_else(unreadable)?);
        }
    }
    Ok(entries)
}
