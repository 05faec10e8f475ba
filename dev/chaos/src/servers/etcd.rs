//! An `etcd` of this process's own, or a cluster of some.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{KILL, PATIENCE, Running, log_of, somewhere};

const PORTS: Range<u16> = 28_000..30_000;

/// A server, which ends with this value.
#[derive(Debug)]
pub struct Server {
    port: u16,
    peers: u16,
    health: u16,
    folder: PathBuf,
    options: Vec<String>,
    /// Whether the port for clients takes plain connections.
    is_tls: bool,
    running: Option<Running>,
}

impl Server {
    /// One that is a cluster of its own.
    pub fn start() -> Self {
        Server::with(&[])
    }

    /// One with options of its own. With a `--cert-file` its clients use TLS.
    pub fn with(options: &[&str]) -> Self {
        let server = Server::launched(|server| {
            let cluster = format!("n=http://127.0.0.1:{}", server.peers);
            let own = ["--name", "n", "--initial-cluster", &cluster];
            own.iter()
                .chain(options)
                .map(|&one| one.to_owned())
                .collect()
        });
        server.until_healthy();
        server
    }

    /// A cluster of three.
    pub fn three() -> [Self; 3] {
        let peers: [u16; 3] = std::array::from_fn(|_| super::free_port(&PORTS));
        let cluster: Vec<_> = (0..3)
            .map(|at| format!("n{at}=http://127.0.0.1:{}", peers[at]))
            .collect();
        let cluster = cluster.join(",");
        let servers = std::array::from_fn(|at| {
            Server::launched(|server| {
                server.peers = peers[at];
                let name = format!("n{at}");
                let own = ["--name", &name, "--initial-cluster", &cluster];
                own.iter().map(|&one| one.to_owned()).collect()
            })
        });
        servers.iter().for_each(Server::until_healthy);
        servers
    }

    fn launched(options: impl Fn(&mut Server) -> Vec<String>) -> Self {
        somewhere("etcd", &PORTS, |port, folder| {
            let mut server = Server {
                port,
                peers: super::free_port(&PORTS),
                health: super::free_port(&PORTS),
                folder,
                options: Vec::new(),
                is_tls: false,
                running: None,
            };
            server.options = options(&mut server);
            server.is_tls = server.options.iter().any(|one| one == "--cert-file");
            server.launch().then_some(server)
        })
    }

    /// Its port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its URL, as a store takes it.
    pub fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port)
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Kills it without a chance to write anything.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Starts it again on the same ports, with the same options, after killing it if it runs.
    pub fn restart(&mut self) {
        self.kill();
        let start = Instant::now();
        // The system may keep a port for a moment.
        while !self.launch() {
            assert!(
                start.elapsed() < PATIENCE,
                "it starts again: {}",
                log_of(&self.folder)
            );
        }
        self.until_healthy();
    }

    /// Stops the process as a debugger would: its connections stay, and nothing answers.
    pub fn stop(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let running = self.running.as_ref().expect("it runs");
        assert!(running.signal(signal), "kill {signal}");
    }

    /// What it answers to a call of its gateway for JSON, with the head of the answer.
    pub fn post(&self, path: &str, json: &str) -> String {
        let asked = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{json}",
            json.len()
        );
        answer(self.port, &asked).expect("the server answers")
    }

    /// Whether the server has a leader.
    pub fn is_healthy(&self) -> bool {
        let asked = "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
        answer(self.health, asked).is_some_and(|answer| answer.contains(r#""health":"true""#))
    }

    /// Whether the server leads its cluster.
    pub fn leads(&self) -> bool {
        let asked = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
        answer(self.health, asked)
            .is_some_and(|answer| answer.contains("\netcd_server_is_leader 1"))
    }

    fn until_healthy(&self) {
        let start = Instant::now();
        while !self.is_healthy() {
            assert!(
                start.elapsed() < PATIENCE,
                "it is not healthy: {}",
                log_of(&self.folder)
            );
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }

    /// Starts the program, and waits until its ports are open; false if another program has one.
    fn launch(&mut self) -> bool {
        let scheme = if self.is_tls { "https" } else { "http" };
        let clients = format!("{scheme}://127.0.0.1:{}", self.port);
        let peers = format!("http://127.0.0.1:{}", self.peers);
        let health = format!("http://127.0.0.1:{}", self.health);
        let mut program = Command::new("etcd");
        program
            .arg("--data-dir")
            .arg(self.folder.join("data"))
            .args(["--listen-client-urls", &clients])
            .args(["--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers])
            .args(["--listen-metrics-urls", &health])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .args(["--log-level", "error"])
            .args(&self.options);
        let ports = [self.port, self.peers];
        let is_open = |port: &u16| TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_ok();
        // A program that finds its port taken ends.
        let answers = |_: &_| ports.iter().all(is_open);
        self.running = Running::launch(program, &self.folder, KILL, answers);
        self.running.is_some()
    }
}

/// Makes a request of HTTP, and returns the whole answer.
fn answer(port: u16, asked: &str) -> Option<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .ok()?;
    stream.write_all(asked.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}
