//! Three candidates, one of which leads at a time. The leader does its work and ends its service. The
//! next one has a higher token.
//!
//! ```sh
//! cargo run --release -p tourbillon-leases --example election
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tourbillon_leases::{Leases, LockError, MemoryStore};

enum Said {
    /// A candidate leads, with this token.
    Leads(&'static str, u64),
    Failed(LockError),
}

/// A process that takes part in the election until its work is done.
fn candidate(name: &'static str, store: MemoryStore, said: &mpsc::Sender<Said>) {
    let lead = || {
        let leases = Leases::builder(store)
            .instance(name)
            .lease(Duration::from_secs(1))
            .build()?;
        let election = leases.election("scheduler");
        let mut portions = 0;
        // Waits until this candidate is elected, and again when a term is over. The token goes with
        // every write of the leader.
        election.serve(|leadership| {
            // False as soon as the lease is lost, before anybody else can lead.
            while leadership.is_leader() && portions < 3 {
                portions += 1;
                thread::sleep(Duration::from_millis(20));
            }
            if portions == 3 {
                let _ = said.send(Said::Leads(name, leadership.token()));
                // Ends the service when this closure returns. A program that ends calls it, too.
                election.stop();
            }
        })?;
        // The last term has ended with the closure, so the next candidate is elected at once. A
        // leader that is killed is followed when its lease has run out.
        Ok::<(), Box<dyn Error>>(())
    };
    if let Err(error) = lead() {
        let failed = error.downcast::<LockError>();
        let _ = said.send(Said::Failed(*failed.expect("the options are right")));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout();
    let store = MemoryStore::new();
    let (tell, said) = mpsc::channel();
    let mut candidates = Vec::new();
    for name in ["anna", "ben", "cleo"] {
        let (store, tell) = (store.clone(), tell.clone());
        candidates.push(thread::spawn(move || candidate(name, store, &tell)));
    }
    drop(tell);

    let mut last = 0;
    let mut terms = 0;
    for said in said {
        match said {
            Said::Leads(name, token) => {
                assert!(token > last, "tokens grow");
                last = token;
                terms += 1;
                writeln!(out, "{name} has led with token {token}")?;
            }
            Said::Failed(error) => return Err(error.into()),
        }
    }
    for candidate in candidates {
        candidate.join().expect("no candidate panics");
    }
    writeln!(out, "{terms} terms, one after the other")?;
    Ok(())
}
