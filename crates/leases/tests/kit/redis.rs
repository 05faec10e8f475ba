//! A `redis-server` of a test's own: on a free port of the loopback device, in a folder of its own,
//! ended with the test whatever happens to that.

#![allow(dead_code, reason = "each test uses a part of the kit")]

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Starting takes some milliseconds, on a busy machine some hundred.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    port: u16,
    folder: PathBuf,
    options: Vec<String>,
    running: Option<Running>,
}

struct Running {
    server: Child,
    /// Ends the server when this program is killed and nothing is dropped.
    reaper: Child,
}

impl Server {
    /// One that keeps everything in memory alone.
    pub(crate) fn start() -> Self {
        Server::with(&["--save", "", "--appendonly", "no"])
    }

    /// One that has written what it has answered, and reads it again when it is restarted.
    pub(crate) fn durable() -> Self {
        Server::with(&[
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
        ])
    }

    /// A cluster of this one node, which checks that the keys of a call lie in one slot.
    pub(crate) fn cluster() -> Self {
        let server = Server::with(&["--save", "", "--cluster-enabled", "yes"]);
        server.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        let start = Instant::now();
        while !server.cli(&["SET", "x", "1"]).contains("OK") {
            assert!(start.elapsed() < PATIENCE, "no cluster: {}", server.log());
            std::thread::park_timeout(Duration::from_millis(2));
        }
        server.cli(&["DEL", "x"]);
        server
    }

    /// One with options of its own.
    pub(crate) fn with(options: &[&str]) -> Self {
        let options: Vec<_> = options.iter().map(|&option| option.to_owned()).collect();
        for _ in 0..20 {
            let port = free_port();
            let folder = std::env::temp_dir().join(format!("tourbillon-redis-{port}"));
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let mut server = Server {
                port,
                folder,
                options: options.clone(),
                running: None,
            };
            if server.launch() {
                return server;
            }
        }
        panic!("no port for a redis-server was found");
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Kills it without a chance to write anything.
    pub(crate) fn kill(&mut self) {
        self.running = None;
    }

    /// Starts it again on the same port, with the same options, after killing it if it runs.
    pub(crate) fn restart(&mut self) {
        self.kill();
        assert!(self.launch(), "the server starts again: {}", self.log());
    }

    /// Stops the process as a debugger would: its connections stay, and nothing answers.
    pub(crate) fn stop(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn resume(&self) {
        self.signal("-CONT");
    }

    /// What `redis-cli` prints for a command.
    pub(crate) fn cli(&self, command: &[&str]) -> String {
        let mut cli = Command::new("redis-cli");
        cli.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "--no-raw"]);
        let output = cli.args(command).stdin(Stdio::null()).output();
        let output = output.expect("redis-cli comes with redis-server");
        String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned()
    }

    /// A connection of the test's own.
    pub(crate) fn connect(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("a URL");
        let connection = client.get_connection_with_timeout(PATIENCE);
        let connection = connection.expect("the server takes connections");
        connection
            .set_read_timeout(Some(PATIENCE))
            .expect("a time-out can be set");
        connection
    }

    fn signal(&self, signal: &str) {
        let running = self.running.as_ref().expect("it runs");
        let sent = Command::new("kill")
            .args([signal, &running.server.id().to_string()])
            .status();
        assert!(sent.is_ok_and(|status| status.success()), "kill {signal}");
    }

    /// Starts the program and waits until it answers; false if another program has the port.
    fn launch(&mut self) -> bool {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))
            .expect("a log");
        let mut server = Command::new("redis-server");
        server
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--enable-debug-command", "yes", "--dir"])
            .arg(&self.folder)
            .args(&self.options)
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a log"))
            .stdout(log);
        let server = server.spawn().expect("redis-server is in the PATH");
        // A key that interrupts all of the terminal's programs leaves it its work.
        let work = "trap '' INT HUP TERM; cat >/dev/null; kill -9 \"$1\"; rm -rf \"$2\"";
        let reaper = Command::new("sh")
            .args(["-c", work, "sh"])
            .arg(server.id().to_string())
            .arg(&self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh is in the PATH");
        let mut running = Running { server, reaper };
        let own = running.server.id().to_string();
        let start = Instant::now();
        loop {
            if matches!(running.server.try_wait(), Ok(Some(_))) {
                return false;
            }
            // Another test's server would have another number.
            if self.process() == Some(own.clone()) {
                self.running = Some(running);
                return true;
            }
            assert!(start.elapsed() < PATIENCE, "no answer: {}", self.log());
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }

    fn process(&self) -> Option<String> {
        let client = redis::Client::open(self.url()).ok()?;
        let mut connection = client.get_connection_with_timeout(PATIENCE).ok()?;
        connection.set_read_timeout(Some(PATIENCE)).ok()?;
        let info: String = redis::cmd("INFO")
            .arg("server")
            .query(&mut connection)
            .ok()?;
        // It answers that while it loads its data, and this not.
        let found = redis::cmd("GET")
            .arg("x")
            .query::<Option<String>>(&mut connection);
        if matches!(&found, Err(error) if error.code() == Some("LOADING")) {
            return None;
        }
        let mut lines = info.lines();
        lines.find_map(|line| line.strip_prefix("process_id:").map(str::to_owned))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The reaper first: afterwards the number of the server may be another process's.
        let _ = self.reaper.kill();
        let _ = self.reaper.wait();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A port that nobody has, below those that the system gives to connections: it has to be free also
/// when the server is started again. So does the one that a node of a cluster has 10,000 above.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + (std::process::id() * 37 + number) % 2_700;
        let port = u16::try_from(port).expect("below 22,700");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
