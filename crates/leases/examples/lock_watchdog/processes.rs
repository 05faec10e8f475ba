//! Holders that are processes of this program, on a Redis server. A holder is killed by SIGKILL, or
//! by the equivalent of another system.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use tourbillon::Clock;
use tourbillon_leases::{RedisBuildError, RedisStore, StoreError};

use crate::cli::Options;
use crate::contest::{Contestant, Message, Place};
use crate::holder::{self, Millis, Order, Said, Setting};
use crate::wire;

/// A prefix of its own keeps the keys of this example apart from other locks on the server.
const PREFIX: &str = "tourbillon-example";
/// The tokens of this example are removed soon.
const TOKEN_LIFE: Duration = Duration::from_secs(60);
/// A running server answers within this time.
const LIMIT: Duration = Duration::from_secs(2);

struct Processes {
    program: OsString,
    url: String,
    lock: String,
    lease: Duration,
    careless: bool,
}

/// Creates the store, with the same options in all processes. Its longest lease is the lease that
/// the example uses. So the wait for a server that has just started is as short as possible.
fn store(url: &str, lease: Duration) -> Result<RedisStore, RedisBuildError> {
    RedisStore::builder(url)
        .prefix(PREFIX)
        .longest_lease(lease)
        .token_life(TOKEN_LIFE)
        .build()
}

/// Checks the server, and waits while it grants nothing yet. The outer errors are those of writing.
pub(crate) fn place(
    program: &OsStr,
    url: &str,
    options: &Options,
    clock: &Clock,
    out: &mut dyn Write,
) -> io::Result<Result<Box<dyn Place>, String>> {
    // The ledger compares times of different processes, so they need a common clock.
    if !clock.counts_suspend() {
        let fault = "there is no clock here that processes share, so overlaps can't be seen";
        return Ok(Err(fault.to_owned()));
    }
    let store = match store(url, options.lease) {
        Ok(store) => store,
        Err(error) => return Ok(Err(error.to_string())),
    };
    loop {
        match store.check(LIMIT) {
            Ok(()) => break,
            Err(StoreError::Restarted { wait } | StoreError::Emptied { wait, .. }) => {
                writeln!(
                    out,
                    "the server has just started, or is new to this, and grants nothing for another \
                     {}, since holders may still rely on earlier leases",
                    Millis(wait)
                )?;
                thread::sleep(wait);
            }
            Err(error) => return Ok(Err(format!("no server to use: {error}"))),
        }
    }
    Ok(Ok(Box::new(Processes {
        program: program.to_owned(),
        url: url.to_owned(),
        // Two runs at the same time use different locks.
        lock: format!("lock-{}", std::process::id()),
        lease: options.lease,
        careless: options.sabotage,
    })))
}

/// Runs the process of a holder, and returns its exit code. Orders come from stdin, and reports go
/// to stdout.
pub(crate) fn hold(name: String, lock: String, options: &Options) -> u8 {
    let url = options.redis.as_deref().unwrap_or_default();
    let store = match store(url, options.lease) {
        Ok(store) => store,
        Err(error) => {
            tell(&Said::Fails(error.to_string()));
            return 1;
        }
    };
    let (sender, orders) = channel();
    thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            // A holder that has ended needs no orders.
            let _ = wire::order(&line).map(|order| sender.send(order));
        }
        // The parent process is gone, so no order would ever end this holder.
        std::process::exit(1);
    });
    let setting = Setting {
        name,
        lock,
        lease: options.lease,
        clock: Clock::boottime(),
        store: Arc::new(store),
        careless: options.sabotage,
    };
    holder::run(&setting, &orders, &mut |said| tell(&said));
    0
}

/// Writes a report at once, so that it is not lost when the process is killed.
fn tell(said: &Said) {
    let mut out = io::stdout().lock();
    let Some(line) = wire::said_line(said) else {
        return;
    };
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

impl Place for Processes {
    fn start(
        &self,
        number: usize,
        name: &str,
        messages: &Sender<Message>,
    ) -> io::Result<Box<dyn Contestant>> {
        let mut command = Command::new(&self.program);
        command
            .args(["--hold", name, "--lock", &self.lock, "--redis", &self.url])
            .args(["--lease", &self.lease.as_millis().to_string()]);
        if self.careless {
            command.arg("--sabotage");
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (orders, words) = (child.stdin.take(), child.stdout.take());
        let process = Process {
            child,
            orders,
            careless: self.careless,
            killed: false,
        };
        let words = words.ok_or_else(|| io::Error::other("a process without its stdout"))?;
        let messages = messages.clone();
        thread::Builder::new().spawn(move || {
            let lines = BufReader::new(words).lines().map_while(Result::ok);
            // Ignore a last line that was cut short when its process was killed.
            for said in lines.filter_map(|line| wire::said(&line)) {
                if messages.send(Message { number, said }).is_err() {
                    return;
                }
            }
            let said = Said::Gone;
            let _ = messages.send(Message { number, said });
        })?;
        Ok(Box::new(process))
    }

    fn death(&self) -> &'static str {
        if self.careless {
            "is cut off from the store, and does not care"
        } else {
            "is killed, by SIGKILL"
        }
    }
}

struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    careless: bool,
    killed: bool,
}

impl Contestant for Process {
    fn order(&mut self, order: Order) {
        if let Some(orders) = &mut self.orders {
            // A process that has ended reports that by the end of its pipe.
            let _ = writeln!(orders, "{}", wire::order_line(order));
        }
    }

    fn kill(&mut self) -> io::Result<()> {
        if self.careless {
            // A dead holder could do no harm. So this one is only cut off from the store, and goes
            // on.
            self.order(Order::Cut);
            return Ok(());
        }
        self.killed = true;
        self.child.kill()
    }

    fn wait(&mut self) -> io::Result<()> {
        let status = self.child.wait()?;
        if self.killed || status.success() {
            Ok(())
        } else {
            Err(io::Error::other(format!("a holder ended with {status}")))
        }
    }
}

/// Leaves no process behind.
impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
