//! A `redis-server` of this process's own.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{KILL, PATIENCE, Running, log_of, somewhere};

/// A node of a cluster has one more port, 10,000 above.
const PORTS: Range<u16> = 20_000..22_700;

/// A server, which ends with this value.
#[derive(Debug)]
pub struct Server {
    port: u16,
    folder: PathBuf,
    options: Vec<String>,
    /// Of a Sentinel: the text of its file, which it changes.
    watches: Option<String>,
    running: Option<Running>,
}

impl Server {
    /// One that keeps everything in memory alone.
    pub fn start() -> Self {
        Server::with(&["--save", "", "--appendonly", "no"])
    }

    /// One that has written what it has answered, and reads it again when it is restarted.
    pub fn durable() -> Self {
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
    pub fn cluster() -> Self {
        let server = Server::with(&["--save", "", "--cluster-enabled", "yes"]);
        server.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        let start = Instant::now();
        while !server.cli(&["SET", "x", "1"]).contains("OK") {
            assert!(
                start.elapsed() < PATIENCE,
                "no cluster: {}",
                log_of(&server.folder)
            );
            std::thread::park_timeout(Duration::from_millis(2));
        }
        server.cli(&["DEL", "x"]);
        server
    }

    /// One that keeps everything in memory, and has all that this one has. It is there when it is in
    /// step.
    pub fn replica(&self) -> Self {
        self.cli(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
        let port = self.port.to_string();
        let replica = Server::with(&["--save", "", "--replicaof", "127.0.0.1", &port]);
        replica.until(&["INFO", "replication"], "master_link_status:up");
        replica
    }

    /// A Sentinel that watches this master, which has one replica, by the name `shop`. It promotes the
    /// replica when the master has not answered for half a second, and asks no other Sentinel. Between
    /// the begins of two failovers lie six seconds at least.
    pub fn sentinel(&self) -> Self {
        let sentinel = Server::watching(self.port, &[]);
        sentinel.until(&["SENTINEL", "REPLICAS", "shop"], "\"slave\"");
        sentinel
    }

    /// A Sentinel with options of its own, for the master at this port.
    pub fn watching(master: u16, options: &[&str]) -> Self {
        let watches = format!(
            "sentinel monitor shop 127.0.0.1 {master} 1\nsentinel down-after-milliseconds shop 500\n\
             sentinel failover-timeout shop 3000\n"
        );
        let options: Vec<_> = options.iter().chain(&["--sentinel"]).copied().collect();
        Server::made(&options, Some(&watches))
    }

    /// One with options of its own.
    pub fn with(options: &[&str]) -> Self {
        Server::made(options, None)
    }

    fn made(options: &[&str], watches: Option<&str>) -> Self {
        let options: Vec<_> = options.iter().map(|&option| option.to_owned()).collect();
        somewhere("redis", &PORTS, |port, folder| {
            let mut server = Server {
                port,
                folder,
                options: options.clone(),
                watches: watches.map(str::to_owned),
                running: None,
            };
            server.launch().then_some(server)
        })
    }

    /// Waits until `redis-cli` prints this among other things.
    pub fn until(&self, command: &[&str], printed: &str) {
        let start = Instant::now();
        loop {
            let all = self.cli(command);
            if all.contains(printed) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{command:?}: {all}");
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Kills it without a chance to write anything.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Starts it again on the same port, with the same options, after killing it if it runs.
    pub fn restart(&mut self) {
        self.kill();
        assert!(
            self.launch(),
            "the server starts again: {}",
            log_of(&self.folder)
        );
    }

    /// Cuts its replicas off, until it is started again. What it is told from now on is nowhere else.
    pub fn cut_off_replicas(&self) {
        self.cli(&["ACL", "SETUSER", "default", "-sync", "-psync"]);
        self.cli(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// Stops the process as a debugger would: its connections stay, and nothing answers.
    pub fn stop(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    /// What `redis-cli` prints for a command.
    pub fn cli(&self, command: &[&str]) -> String {
        let mut cli = Command::new("redis-cli");
        cli.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "--no-raw"]);
        let output = cli.args(command).stdin(Stdio::null()).output();
        let output = output.expect("redis-cli comes with redis-server");
        String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned()
    }

    /// A connection to it.
    pub fn connect(&self) -> redis::Connection {
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
        assert!(running.signal(signal), "kill {signal}");
    }

    /// Starts the program and waits until it answers; false if another program has the port.
    fn launch(&mut self) -> bool {
        let mut program = Command::new("redis-server");
        if let Some(watches) = &self.watches {
            let file = self.folder.join("sentinel.conf");
            if !file.exists() {
                fs::write(&file, watches).expect("the folder is this server's own");
            }
            program.arg(file);
        }
        program
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--enable-debug-command", "yes", "--dir"])
            .arg(&self.folder)
            .args(&self.options);
        // Another process's server would have another number.
        let own = |server: &Child| self.process() == Some(server.id().to_string());
        self.running = Running::launch(program, &self.folder, KILL, own);
        self.running.is_some()
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
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A port for another server like these.
pub fn free_port() -> u16 {
    super::free_port(&PORTS)
}
