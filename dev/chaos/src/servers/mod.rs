//! Servers of this process's own: on a free port of the loopback device, in a temporary folder,
//! ended with the value, or with the process whatever happens to that.

use std::env;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "postgres")]
pub mod pgbouncer;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;

/// To start takes some seconds at most, on a busy machine many times as long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A port that nobody has. The ports lie below those that the system gives to connections, since a
/// port has to be free also when its server is started again.
fn free_port(ports: &Range<u16>) -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let many = u32::from(ports.end - ports.start);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let at = (std::process::id() * 37 + number) % many;
        let port = ports.start + u16::try_from(at).expect("less than all ports");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Starts a server where it finds a place: a port and a new folder. `start` answers `None` if
/// another program took the port first.
fn somewhere<S>(name: &str, ports: &Range<u16>, start: impl Fn(u16, PathBuf) -> Option<S>) -> S {
    let place = || {
        let port = free_port(ports);
        let folder = env::temp_dir().join(format!("tourbillon-{name}-{port}"));
        fs::create_dir(&folder).ok()?;
        start(port, folder)
    };
    let started = (0..20).find_map(|_| place());
    started.unwrap_or_else(|| panic!("no port for {name} was found"))
}

/// The process of a server.
#[derive(Debug)]
struct Running {
    server: Child,
    /// Ends the server when this program is killed and nothing is dropped.
    reaper: Child,
    /// The signal that asks the server to end at once.
    ask: &'static str,
}

impl Running {
    /// Starts the program, whose output goes to a log, and waits until `answers` says that it does;
    /// `None` if another program has its port.
    fn launch(
        mut program: Command,
        folder: &Path,
        ask: &'static str,
        answers: impl Fn(&Child) -> bool,
    ) -> Option<Running> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(folder.join("log"));
        let log = log.expect("a log");
        program
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a log"))
            .stdout(log);
        let server = program.spawn().expect("the program of the server is there");
        // A key that interrupts all of the terminal's programs leaves it its work. A server that is
        // asked first gives back what it shares with its processes.
        let work = "trap '' INT HUP TERM; cat >/dev/null; kill \"$3\" \"$1\"; \
                    n=0; while kill -0 \"$1\" 2>/dev/null && [ $n -lt 50 ]; do sleep 0.1; n=$((n+1)); done; \
                    kill -9 \"$1\" 2>/dev/null; rm -rf \"$2\"";
        let reaper = Command::new("sh")
            .args(["-c", work, "sh", &server.id().to_string()])
            .arg(folder)
            .arg(ask)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh is in the PATH");
        let mut running = Running {
            server,
            reaper,
            ask,
        };
        let start = Instant::now();
        loop {
            if matches!(running.server.try_wait(), Ok(Some(_))) {
                return None;
            }
            if answers(&running.server) {
                return Some(running);
            }
            assert!(start.elapsed() < PATIENCE, "no answer: {}", log_of(folder));
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: &str) -> bool {
        let sent = Command::new("kill")
            .args([signal, &self.server.id().to_string()])
            .status();
        sent.is_ok_and(|status| status.success())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The reaper first: afterwards the number of the server may be another process's.
        let _ = self.reaper.kill();
        let _ = self.reaper.wait();
        if self.ask == KILL || !self.signal(self.ask) {
            let _ = self.server.kill();
        }
        let start = Instant::now();
        while matches!(self.server.try_wait(), Ok(None)) {
            if start.elapsed() > Duration::from_secs(10) {
                let _ = self.server.kill();
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }
}

/// Ends a server without a chance to write anything.
const KILL: &str = "-KILL";

fn log_of(folder: &Path) -> String {
    let log = fs::read(folder.join("log")).unwrap_or_default();
    String::from_utf8_lossy(&log).trim_end().to_owned()
}
