//! The store on Redis while its own process is stopped and goes on. Alone in its file, since that
//! befalls all tests of a program.

use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use kit::wait;
#[path = "kit/calls.rs"]
mod calls;

use calls::Calls;
use tourbillon_leases::{
    Acquired, Claim, Destination, Outcome, RedisStore, Released, Renewal, Secret,
};

use chaos::servers::redis::Server;

const LIMIT: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(30);

/// Stops this process for a moment, which interrupts whatever it reads with a time-out.
fn stop_and_go_on() {
    let own = std::process::id().to_string();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "kill -STOP $1; kill -CONT $1", "sh", &own])
        .stdin(Stdio::null());
    assert!(shell.status().is_ok_and(|status| status.success()));
}

struct Silent;

impl Wake for Silent {
    fn wake(self: Arc<Self>) {}
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_process_that_was_stopped_goes_on_with_its_calls() {
    let server = Server::start();
    let store = RedisStore::builder(&server.url())
        .durable()
        .build()
        .unwrap();
    let _watch = store.watch("x", &Waker::from(Arc::new(Silent)));
    let listeners = || server.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]);
    wait::until("it listens", || listeners().contains("cmd=subscribe"));
    let before = listeners();
    let id = |list: &str| list.split_whitespace().next().map(str::to_owned);
    let renewal = [Renewal::new("x", Secret::new("a:1"), LEASE)];
    let call = |call: fn(&RedisStore, &[Renewal<'_>]) -> String| {
        let (tell, told) = mpsc::channel();
        // Nothing answers, so the call is under way when the process is stopped.
        server.stop();
        thread::scope(|scope| {
            scope.spawn(|| tell.send(call(&store, &renewal)));
            for _ in 0..5 {
                let early = told.recv_timeout(Duration::from_millis(20));
                assert!(early.is_err(), "{early:?}");
                stop_and_go_on();
            }
            server.resume();
            wait::next(&told)
        })
    };
    let granted = call(|store, _| {
        let claim = Claim::new("x", "a:1", Secret::new("a:1"), LEASE);
        match store.acquire(&claim, LIMIT) {
            Ok(Acquired::Granted { .. }) => "granted".to_owned(),
            other => format!("{other:?}"),
        }
    });
    assert_eq!(granted, "granted");
    let renewed =
        call(|store, batch| format!("{:?}", store.renew(Destination::default(), batch, LIMIT)));
    assert_eq!(renewed, format!("Ok({:?})", [Outcome::Renewed]));
    let released = call(|store, _| format!("{:?}", store.release("x", Secret::new("a:1"), LIMIT)));
    // It was sent several times, and the last answer counts.
    let possible = [Released::Released, Released::NotHeld].map(|one| format!("Ok({one:?})"));
    assert!(possible.contains(&released), "{released}");
    assert_eq!(
        server.cli(&["EXISTS", "tourbillon:{x}:lock"]),
        "(integer) 0"
    );
    // Who listens has heard of nothing.
    assert_eq!(id(&listeners()), id(&before));
}
