//! Leases on real servers, while everything goes wrong that may: do two holders ever believe at one
//! time that they hold a lock?
//!
//! ```text
//! cargo run --release -p chaos --bin failing-servers -- --rounds 1000
//! cargo run --release -p chaos --bin failing-servers -- --rounds 1000 --postgres
//! cargo run --release -p chaos --bin failing-servers -- --rounds 200 --sentinel
//! cargo run --release -p chaos --bin failing-servers -- --rounds 200 --cluster
//! ```
//!
//! ```text
//!  server, of our own ---- MONITOR --> watch -----------------.
//!     ^   ^                                                    v
//!     |   '--- killed, stopped, paused: its conductor        judge <-- beliefs, a file each
//!     |                                                        ^
//!  path, a proxy: cut, delayed, held, swallowed                |
//!     |                                                        |
//!  holders: processes and threads that compete  --- words --> arena: one lock, its rounds;
//!                                                             stops and kills holders
//! ```
//!
//! The locks of one server go from round to round together. What happens when is the machine's
//! affair; what befalls whom is the seed's.

#[macro_use]
#[path = "../../../xtask/src/say.rs"]
mod say;

mod arena;
#[path = "../../../../crates/leases/tests/kit/calls.rs"]
mod calls;
mod clustered;
mod holder;
mod plan;
mod run;
mod server_judge;
mod site;
mod tally;
mod watch;
mod watched;

use std::process::ExitCode;
use std::time::Duration;

use chaos::command_line::{self, Stop, Values};
use chaos::crew;

use holder::{Order, Sabotage};
use run::run;
use site::Kind;

const HELP: &str = "\
Locks on servers of this program's own, while servers, connections and holders fail.

    --postgres    PostgreSQL servers; without it Redis servers
    --sentinel    Redis masters, each with a replica and a Sentinel, which replaces a master that is
                  killed or stands still
    --cluster     Redis clusters of three masters and three replicas, whose slots also move
    --rounds N    this many; 1,000
    --minutes N   begin no round after this time
    --seed N      chooses the faults; by the clock
    --servers N   run at the same time; 4
    --locks N     of each server; 4
    --teeth       does it wrong on purpose, in each way, and expects that to be found
    --sabotage W  does it wrong in one way: unguarded, deaf, leak
    -h, --help    this text
    -V, --version the version

Exit code 1 if two ever held a lock at a time, by what they believed, if a token did not increase, or
if something was left; 2 if it could not run.
";

const WAYS: [(&str, Sabotage); 3] = [
    ("unguarded", Sabotage::Unguarded),
    ("deaf", Sabotage::Deaf),
    ("leak", Sabotage::Leak),
];

#[derive(Clone, Debug)]
struct Options {
    kind: Kind,
    rounds: usize,
    limit: Option<Duration>,
    seed: Option<u64>,
    servers: usize,
    locks: usize,
    sabotage: Option<Sabotage>,
    teeth: bool,
}

fn main() -> ExitCode {
    let held = crew::serve(|order: Order, told, say| holder::hold(&order, told, say));
    held.unwrap_or_else(|| {
        let options = Options {
            kind: Kind::Redis,
            rounds: 1_000,
            limit: None,
            seed: None,
            servers: 4,
            locks: 4,
            sabotage: None,
            teeth: false,
        };
        command_line::run("failing-servers", HELP, options, option, |options| {
            options.kind.is_there().map_err(Stop::Unusable)?;
            let is_well = match options.teeth {
                true => teeth(&options),
                false => told(&options).is_well(),
            };
            if is_well { Ok(()) } else { Err(Stop::Found) }
        })
    })
}

fn option(options: &mut Options, name: &str, values: &mut Values) -> Result<bool, String> {
    let mut number = |most| values.number(1..=most).map(|number| number as usize);
    match name {
        "--postgres" => options.kind = Kind::Postgres,
        "--sentinel" => options.kind = Kind::Sentinel,
        "--cluster" => options.kind = Kind::Cluster,
        "--rounds" => options.rounds = number(1_000_000)?,
        "--servers" => options.servers = number(64)?,
        "--locks" => options.locks = number(64)?,
        "--minutes" => {
            let minutes = values.number(1..=10_000)?;
            options.limit = Some(Duration::from_secs(60 * minutes));
        }
        "--seed" => options.seed = Some(values.number(0..=u64::MAX)?),
        "--teeth" => options.teeth = true,
        "--sabotage" => {
            let way = values.text()?;
            let found = WAYS.iter().find(|(name, _)| *name == way);
            let (_, way) = found.ok_or(format!("{way:?} is no sabotage"))?;
            options.sabotage = Some(*way);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Runs, and tells what came of it.
fn told(options: &Options) -> tally::Tally {
    let (tally, seed, took) = run(options);
    say!(
        "{} locks on {} servers, {} s",
        options.servers * options.locks,
        options.servers,
        took.as_secs()
    );
    say!("{tally}");
    say!("{}", tally.line(seed));
    tally
}

/// How often a wrong way is tried until it is found.
const TRIES: u64 = 4;

/// Does it wrong in every way. Whether each was found, and for what it is.
fn teeth(options: &Options) -> bool {
    let rounds = options.rounds.min(options.servers * options.locks * 4);
    // A PostgreSQL server that was killed has lost nothing, and before a Sentinel has replaced a master all
    // of these leases are over.
    let is_unguarded = matches!(options.kind, Kind::Redis | Kind::Cluster);
    let ways = WAYS
        .iter()
        .filter(|(_, way)| is_unguarded || *way != Sabotage::Unguarded);
    ways.copied().all(|(name, way)| {
        // How often a wrong way shows depends on how fast the machine is at that time.
        let found = (0..TRIES).any(|attempt| {
            say!("-- {name}");
            let tally = told(&Options {
                rounds,
                seed: options.seed.map(|seed| seed.wrapping_add(attempt)),
                sabotage: Some(way),
                ..options.clone()
            });
            let [overlaps, _, leftovers] = tally.found();
            match way {
                Sabotage::Unguarded | Sabotage::Deaf => overlaps > 0,
                Sabotage::Leak => leftovers > 0,
            }
        });
        if !found {
            complain!("failing-servers: {name} was not found");
        }
        found
    })
}
