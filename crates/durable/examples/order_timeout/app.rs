//! The program from its arguments to its exit code. Tests can replace the console.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use terminal_size::{Width, terminal_size};

use crate::cli::{self, Command, Options};
use crate::database::Database;
#[cfg(feature = "postgres")]
use crate::postgres::Server;
use crate::run::{self, Failure};
use crate::sqlite::File;
use crate::worker;

/// The run succeeded.
pub(crate) const FINE: u8 = 0;
/// An order was paid and cancelled, or neither, or the run did not reach its end.
pub(crate) const FAILED: u8 = 1;
/// The command line is invalid.
pub(crate) const USAGE: u8 = 2;

/// Standard output and standard error.
pub(crate) struct Console<'a> {
    pub(crate) out: &'a mut dyn Write,
    pub(crate) err: &'a mut dyn Write,
    pub(crate) err_is_terminal: bool,
}

impl Console<'_> {
    /// Writes one line to standard error. An error is ignored, since it could not be reported.
    fn complain(&mut self, line: &str) {
        let _ = writeln!(self.err, "order_timeout: {line}");
    }
}

/// Makes signals set a flag from now on.
pub(crate) type Signals = fn() -> io::Result<Arc<AtomicBool>>;

/// The first SIGTERM or SIGINT sets the flag. The second one ends the program.
fn signals() -> io::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order matters: the first handler reads the flag before the second handler sets it.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked))?;
        flag::register(signal, Arc::clone(&asked))?;
    }
    Ok(asked)
}

fn columns() -> usize {
    terminal_size().map_or(80, |(Width(columns), _)| columns.into())
}

/// Runs the program with the arguments after its name, and returns its exit code. Workers are
/// processes that run `program`.
pub(crate) fn run(
    program: &OsStr,
    args: impl IntoIterator<Item = OsString>,
    mut console: Console<'_>,
) -> u8 {
    let words = args.into_iter().map(OsString::into_string);
    let words: Result<Vec<_>, _> = words.collect();
    let command = match words {
        Ok(words) => cli::parse(words),
        Err(word) => Err(format!("{} is no text", word.display())),
    };
    let outcome = match command {
        Err(fault) => {
            console.complain(&fault);
            return USAGE;
        }
        Ok(Command::Help) => console.out.write_all(cli::HELP.as_bytes()).map(|()| FINE),
        Ok(Command::Version) => {
            let version = env!("CARGO_PKG_VERSION");
            writeln!(console.out, "order_timeout (tourbillon-durable) {version}").map(|()| FINE)
        }
        Ok(Command::Run(options)) => whole(program, &options, &mut console),
        Ok(Command::Work { number, options }) => {
            return match given(&options) {
                Ok(Some(database)) => worker::run(database.as_ref(), number, signals),
                Ok(None) => {
                    console.complain("a worker needs --file or --postgres");
                    USAGE
                }
                Err(fault) => {
                    console.complain(&fault);
                    USAGE
                }
            };
        }
    };
    match outcome.and_then(|code| console.out.flush().map(|()| code)) {
        Ok(code) => code,
        // A reader that closed the pipe has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => FINE,
        Err(error) => {
            console.complain(&format!("cannot write: {error}"));
            FAILED
        }
    }
}

/// The database that the options name.
fn given(options: &Options) -> Result<Option<Box<dyn Database>>, String> {
    let sabotage = options.sabotage;
    if let Some(path) = options.file.clone() {
        return Ok(Some(Box::new(File { path, sabotage })));
    }
    match options.postgres.clone() {
        None => Ok(None),
        #[cfg(feature = "postgres")]
        Some(url) => Ok(Some(Box::new(Server { url, sabotage }))),
        #[cfg(not(feature = "postgres"))]
        Some(_) => Err(
            "this was built without PostgreSQL: run it with `--features postgres`, as in `cargo run \
             --release -p tourbillon-durable --example order_timeout --features postgres -- \
             --postgres postgres://postgres@localhost/test`"
                .to_owned(),
        ),
    }
}

/// Runs it on the database that the options name, or on a file in a temporary folder. The errors are
/// those of writing.
fn whole(program: &OsStr, options: &Options, console: &mut Console<'_>) -> io::Result<u8> {
    match given(options) {
        Ok(Some(database)) => on(program, database.as_ref(), options, console),
        Ok(None) => match Folder::create() {
            Ok(folder) => {
                let file = File {
                    path: folder.0.join("orders.db"),
                    sabotage: options.sabotage,
                };
                on(program, &file, options, console)
            }
            Err(error) => {
                console.complain(&format!("no temporary folder: {error}"));
                Ok(FAILED)
            }
        },
        Err(fault) => {
            console.complain(&fault);
            Ok(USAGE)
        }
    }
}

fn on(
    program: &OsStr,
    database: &dyn Database,
    options: &Options,
    console: &mut Console<'_>,
) -> io::Result<u8> {
    let Options {
        seconds,
        orders_per_second,
        workers,
        ..
    } = options;
    writeln!(
        console.out,
        "{orders_per_second} orders a second for {seconds} s, {workers} worker processes, {}",
        database.describe()
    )?;
    let ended = signals()?;
    match run::run(program, database, options, &ended, columns, console) {
        Ok(audit) => {
            if audit.doubled > 0 {
                let doubled = audit.doubled;
                console.complain(&format!("{doubled} payments or cancellations came twice"));
            }
            writeln!(console.out, "{audit}")?;
            Ok(if audit.is_fine() { FINE } else { FAILED })
        }
        Err(Failure::Output(error)) => Err(error),
        Err(Failure::Fault(fault)) => {
            console.complain(&fault);
            Ok(FAILED)
        }
    }
}

/// A folder that is removed with all that is in it.
struct Folder(PathBuf);

impl Folder {
    fn create() -> io::Result<Folder> {
        let path = env::temp_dir().join(format!("order_timeout-{}", process::id()));
        // One of an earlier process with the same number, which was killed.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
