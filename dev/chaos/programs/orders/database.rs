//! What the program asks of a database. Both kinds of journal entries are written independently of
//! each other, so the count at the end can show an order that was paid and cancelled.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tourbillon_durable::Durable;

use crate::postgres::Server;
use crate::sqlite::File;

/// The errors of databases and of timers. They are only shown.
pub(crate) type Fault = Box<dyn Error + Send + Sync>;

/// The queue of all timers of the program.
pub(crate) const QUEUE: &str = "pay-by";

/// How long customers have to pay. A real shop gives them 15 minutes.
pub(crate) const PAY_WITHIN: Duration = Duration::from_secs(2);

/// How long a worker may be silent before the others take its timers. The default is 15 s; here
/// workers are killed all the time.
pub(crate) const NODE_LEASE: Duration = Duration::from_secs(1);

/// The time between two polls of the timers that are due soon.
pub(crate) const POLL: Duration = Duration::from_millis(200);

/// The time that a handler spends on other things, such as an e-mail to the customer. A worker that
/// is killed meanwhile leaves its run to the others.
pub(crate) const OTHER_WORK: Duration = Duration::from_millis(100);

/// The payload of a timer.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct PayBy {
    pub(crate) order: i64,
}

/// The key of an order's timer.
pub(crate) fn key(order: i64) -> String {
    format!("order:{order}")
}

/// Where orders and timers are: what a worker process has to know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Place {
    /// A SQLite file.
    File(PathBuf),
    /// The URL of a PostgreSQL server.
    Server(String),
}

impl Place {
    pub(crate) fn open(&self, sabotage: bool) -> Box<dyn Database> {
        match self.clone() {
            Place::File(path) => Box::new(File { path, sabotage }),
            Place::Server(url) => Box::new(Server { url, sabotage }),
        }
    }
}

/// Orders and timers.
pub(crate) trait Database: Sync {
    /// A name for the user.
    fn describe(&self) -> String;

    /// Creates the tables of the shop, and those of the timers.
    fn prepare(&self) -> Result<(), Fault>;

    /// Opens the connection of one shop thread.
    fn shop(&self) -> Result<Box<dyn Shop>, Fault>;

    /// Opens the connection that only reads.
    fn books(&self) -> Result<Box<dyn Books>, Fault>;

    /// Starts timers without a handler: for the page.
    fn timers(&self) -> Result<Durable, Fault>;

    /// Starts the timers of a worker process.
    fn work(&self, name: &str) -> Result<Durable, Fault>;
}

/// The connection of a shop.
pub(crate) trait Shop: Send {
    /// Creates an order and its timer in one transaction, and returns the order's number.
    fn order(&mut self) -> Result<i64, Fault>;

    /// Pays an order and cancels its timer in one transaction. `false`: the order was cancelled
    /// before, and is not paid.
    fn pay(&mut self, order: i64) -> Result<bool, Fault>;
}

/// The connection that reads what has happened.
pub(crate) trait Books {
    /// Counts what has happened so far.
    fn progress(&mut self) -> Result<Progress, Fault>;

    /// Counts the journals against each other.
    fn audit(&mut self) -> Result<Audit, Fault>;
}

/// What has happened so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) orders: i64,
    pub(crate) paid: i64,
    pub(crate) cancelled: i64,
    /// The cancellations since the last call.
    pub(crate) fresh: Vec<Cancellation>,
}

/// One cancellation, as its handler has noted it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cancellation {
    /// From the due time to the start of the handler.
    pub(crate) lateness: Duration,
    /// The number of the run. From 2 on the runs before it did not reach their end.
    pub(crate) attempt: u32,
}

/// The journals against each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Audit {
    pub(crate) orders: i64,
    /// Entries in the journal of payments.
    pub(crate) paid: i64,
    /// Entries in the journal of cancellations.
    pub(crate) cancelled: i64,
    /// Orders with entries in both journals.
    pub(crate) both: i64,
    /// Orders without an entry in any of them.
    pub(crate) neither: i64,
    /// Entries of an order that has one of the same kind already.
    pub(crate) doubled: i64,
}

impl Audit {
    /// Whether each order has exactly one entry.
    pub(crate) fn is_fine(&self) -> bool {
        self.both == 0
            && self.neither == 0
            && self.doubled == 0
            && self.orders == self.paid + self.cancelled
    }
}

/// The last line of the program.
impl std::fmt::Display for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Audit {
            orders,
            paid,
            cancelled,
            both,
            neither,
            ..
        } = self;
        write!(
            f,
            "orders {orders} paid {paid} cancelled {cancelled} both {both} neither {neither}"
        )
    }
}
