//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as Group, Parser, Subcommand, ValueEnum, value_parser};
use clap_complete::Shell;
use tourbillon_durable::StoredState;

use tourbillon_web::{Action, times};

/// Looks after durable timers in a SQLite file or a PostgreSQL database, and shows locks.
///
/// Exit codes: 0 done, 1 there is no such timer or letter, or it can't be done to it now, 2 the command line is wrong,
/// 3 the store can't be reached or refuses.
#[derive(Parser, Debug)]
#[command(name = "tourbillon", version, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Write JSON: one object, or a list of objects
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Group, Clone, Debug)]
pub(crate) struct StoreArgs {
    /// A PostgreSQL server, such as postgres://app@db/shop. A password is better in PGPASSWORD or in the file of passwords
    #[arg(
        long,
        global = true,
        env = "TOURBILLON_URL",
        hide_env_values = true,
        conflicts_with = "file"
    )]
    pub(crate) url: Option<String>,
    /// A SQLite file. It must have tables of timers
    #[arg(long, global = true, env = "TOURBILLON_FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The schema of the tables on PostgreSQL
    #[arg(long, global = true, value_name = "NAME", default_value = "tourbillon")]
    pub(crate) schema: String,
    /// What the names of the tables begin with in the SQLite file
    #[arg(long, global = true, value_name = "NAME", default_value = "tourbillon")]
    pub(crate) prefix: String,
    /// How long to wait for each answer of the store
    #[arg(long, global = true, value_name = "SPAN", default_value = "10s", value_parser = times::span)]
    pub(crate) timeout: Duration,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// The numbers of each queue. 10000+ means that many or more
    Queues,
    /// Timers in the order of their due times
    List {
        /// The queue. All queues without it
        queue: Option<String>,
        /// Only keys that begin with this
        #[arg(long, value_name = "TEXT")]
        keys: Option<String>,
        /// Only timers in this state
        #[arg(long)]
        state: Option<State>,
        /// Only schedules, and whether a process that runs names them
        #[arg(long)]
        schedules: bool,
        /// The greatest number of timers
        #[arg(long, default_value_t = 50, value_name = "N")]
        limit: u32,
    },
    /// One timer, with its payload
    Show { queue: String, key: String },
    /// Move a timer
    Move {
        queue: String,
        key: String,
        /// A span such as 15m or 2h30m, or a time such as 2031-12-24T18:00:00Z
        #[arg(value_parser = times::moment)]
        when: times::Moment,
    },
    /// Make timers due now
    RunNow {
        #[command(flatten)]
        timers: TimersArgs,
    },
    /// Cancel timers. A run that is under way goes on, and no other one follows
    Cancel {
        #[command(flatten)]
        timers: TimersArgs,
    },
    /// Stop a queue, or the schedule of one key: its timers wait until it is resumed
    Pause { queue: String, key: Option<String> },
    /// Let a queue go on, or the schedule of one key
    Resume { queue: String, key: Option<String> },
    /// Timers that were given up
    Dead {
        #[command(flatten)]
        filter: DeadArgs,
        /// The greatest number of dead letters
        #[arg(long, default_value_t = 50, value_name = "N")]
        limit: u32,
        /// Only those with a greater number: for the next page
        #[arg(
            long,
            default_value_t = 0,
            value_name = "ID",
            allow_negative_numbers = true
        )]
        after: i64,
    },
    /// Make dead letters timers again, due now
    Revive {
        #[command(flatten)]
        letters: LettersArgs,
    },
    /// Delete dead letters
    Discard {
        #[command(flatten)]
        letters: LettersArgs,
    },
    /// The processes with handlers
    Nodes {
        /// Also those that are gone
        #[arg(long)]
        all: bool,
    },
    /// The locks that are held on a Redis server, in a PostgreSQL database or in a SQLite file
    Locks {
        #[command(flatten)]
        store: LocksArgs,
        /// Only names that begin with this
        #[arg(long, value_name = "TEXT", default_value = "")]
        names: String,
        /// The greatest number of locks
        #[arg(long, default_value_t = 50, value_name = "N", value_parser = value_parser!(u32).range(1..))]
        limit: u32,
    },
    /// Queues, nodes and the next timers, drawn again and again until Ctrl-C
    Watch {
        /// The time between two looks, at least 500 ms
        #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = times::span)]
        every: Duration,
        /// End after this many looks
        #[arg(long, value_name = "N")]
        times: Option<u32>,
    },
    /// Show a page in the browser until Ctrl-C: queues, timers, dead letters, locks. Nobody can change anything without
    /// --allow
    Serve {
        #[command(flatten)]
        page: ServeArgs,
    },
    /// Print the SQL that makes the tables on PostgreSQL
    Schema,
    /// Can timers run? Exit code 1 if a queue with due timers has no process, or is behind
    Check {
        /// How far a queue may be behind
        #[arg(long, value_name = "SPAN", default_value = "1m", value_parser = times::span)]
        behind: Duration,
    },
    /// Print the completions for a shell
    Completions { shell: Shell },
}

#[derive(Group, Debug)]
pub(crate) struct ServeArgs {
    /// The address and port. Elsewhere than on this machine it needs a password, or --no-auth
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7878")]
    pub(crate) listen: SocketAddr,
    /// The password that the page asks for, with any user name
    #[arg(
        long,
        env = "TOURBILLON_PASSWORD",
        hide_env_values = true,
        conflicts_with = "no_auth"
    )]
    pub(crate) password: Option<String>,
    /// Let everybody who reaches the address read the page, and do what --allow names
    #[arg(long)]
    pub(crate) no_auth: bool,
    /// What users of the page may do: `all`, or some of pause, resume, run-now, move, cancel, revive, discard
    #[arg(long, value_name = "ACTION", value_delimiter = ',', value_parser = actions)]
    pub(crate) allow: Vec<Allowed>,
    /// Show payloads and meta data
    #[arg(long)]
    pub(crate) show_payloads: bool,
    #[command(flatten)]
    pub(crate) locks: LocksArgs,
}

/// Where locks are.
#[derive(Group, Debug)]
pub(crate) struct LocksArgs {
    /// The store of the locks, such as redis://cache/, redis-sentinel://a,b,c/MASTER, redis-cluster://a,b,c/, postgres://app@db/shop or
    /// sqlite:PATH
    #[arg(
        long,
        value_name = "URL",
        env = "TOURBILLON_LOCKS",
        hide_env_values = true
    )]
    pub(crate) locks: Option<String>,
    /// The prefix of its keys on Redis, or its schema on PostgreSQL, if it is not the default one
    #[arg(long, value_name = "NAME", requires = "locks")]
    pub(crate) locks_in: Option<String>,
}

/// Actions that `--allow` names.
#[derive(Clone, Debug)]
pub(crate) struct Allowed(pub(crate) Vec<Action>);

fn actions(text: &str) -> Result<Allowed, String> {
    match text {
        "all" => Ok(Allowed(Action::ALL.to_vec())),
        one => one.parse().map(|action| Allowed(vec![action])),
    }
}

/// One timer, or all with a prefix.
#[derive(Group, Debug)]
pub(crate) struct TimersArgs {
    pub(crate) queue: String,
    #[arg(required_unless_present = "keys", conflicts_with = "keys")]
    pub(crate) key: Option<String>,
    /// All timers whose keys begin with this
    #[arg(long, value_name = "TEXT", requires = "yes")]
    pub(crate) keys: Option<String>,
    /// Do it without being asked
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Group, Debug)]
pub(crate) struct DeadArgs {
    /// The queue. All queues without it
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// Only keys that begin with this
    #[arg(long, value_name = "TEXT")]
    pub(crate) keys: Option<String>,
    /// Only those that were given up so long ago, such as 30d
    #[arg(long, value_name = "SPAN", value_parser = times::span)]
    pub(crate) older_than: Option<Duration>,
}

/// Dead letters by their numbers, or all of a filter.
#[derive(Group, Debug)]
pub(crate) struct LettersArgs {
    /// The numbers of dead letters
    #[arg(required_unless_present_any = ["queue", "keys", "older_than", "all"], conflicts_with_all = ["queue", "keys", "older_than", "all"])]
    pub(crate) ids: Vec<i64>,
    #[command(flatten)]
    pub(crate) filter: DeadArgs,
    /// All dead letters
    #[arg(long)]
    pub(crate) all: bool,
    /// Do it without being asked
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
pub(crate) enum State {
    Waiting,
    Overdue,
    Running,
    Paused,
}

impl From<State> for StoredState {
    fn from(state: State) -> Self {
        match state {
            State::Waiting => StoredState::Waiting,
            State::Overdue => StoredState::Overdue,
            State::Running => StoredState::Running,
            State::Paused => StoredState::Paused,
        }
    }
}
