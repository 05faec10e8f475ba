//! A PostgreSQL cluster of this process's own.

use std::env;
use std::fs;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};

use super::{PATIENCE, Running, log_of, somewhere};

pub(super) const PORTS: Range<u16> = 23_000..28_000;

/// A busy server takes its time for a new connection. By default its client gives up after 5 s.
const PATIENT: &str = "connect_timeout=60";

/// The user that owns the cluster where the tests run as root, which PostgreSQL refuses to run as.
const OWNER: &str = "postgres";

/// One cluster for all tests of a program. It ends with the program.
static SHARED: LazyLock<Cluster> = LazyLock::new(Cluster::start);

/// A new, empty database of the cluster that the tests of a program share.
pub fn database() -> Database {
    SHARED.database()
}

/// The folder of the socket of the shared cluster.
pub fn socket_folder() -> &'static Path {
    &SHARED.folder
}

/// What the server of the shared cluster has written to its log.
pub fn log() -> Vec<u8> {
    SHARED.log()
}

/// A database of the shared cluster whose tables are empty, and made by `make` if it is a new one.
/// It goes to another test after this one: to make a database takes a fifth of a second.
pub fn lent(make: impl FnOnce(&str)) -> Lent {
    let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let database = free.unwrap_or_else(|| {
        let database = database();
        make(&database.url());
        database
    });
    let mut client = database.client();
    // The test before has ended, and a statement of it may still be under way.
    let end_others = "select pg_terminate_backend(pid) from pg_stat_activity \
                      where datname = current_database() and pid <> pg_backend_pid()";
    while !client
        .query(end_others, &[])
        .expect("a superuser")
        .is_empty()
    {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let empty = "truncate tourbillon.timer, tourbillon.dead, tourbillon.node, tourbillon.queue";
    let emptied = client.batch_execute(empty);
    emptied.expect("nobody uses the tables any more");
    Lent(Some(database))
}

static FREE: Mutex<Vec<Database>> = Mutex::new(Vec::new());

/// A database that goes to another test.
#[derive(Debug)]
pub struct Lent(Option<Database>);

impl Deref for Lent {
    type Target = Database;

    fn deref(&self) -> &Database {
        self.0.as_ref().expect("it is taken out by the drop alone")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(self.0.take());
    }
}

/// A database of its own. It stays until the cluster ends.
#[derive(Debug)]
pub struct Database {
    port: u16,
    name: String,
}

impl Database {
    /// The URL for the owner of the cluster.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The URL for a role.
    pub fn url_of(&self, role: &str) -> String {
        let (port, name) = (self.port, &self.name);
        format!("postgres://{role}@127.0.0.1:{port}/{name}?{PATIENT}")
    }

    /// The URL for the owner of the cluster, by another port that leads to it.
    pub fn url_by(&self, port: u16) -> String {
        format!(
            "postgres://postgres@127.0.0.1:{port}/{}?{PATIENT}",
            self.name
        )
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What `psql` prints for these statements: rows alone, fields separated by `|`.
    pub fn psql(&self, sql: &str) -> Result<String, String> {
        psql(&self.url(), sql)
    }

    /// What `psql` prints for these statements in the database `postgres` of the same cluster.
    pub fn beside(&self, sql: &str) -> Result<String, String> {
        psql(&self.url_in("postgres"), sql)
    }

    fn url_in(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The same for a role.
    pub fn psql_as(&self, role: &str, sql: &str) -> Result<String, String> {
        psql(&self.url_of(role), sql)
    }

    /// A connection to it.
    pub fn client(&self) -> Client {
        Client::connect(&self.url(), NoTls).expect("the cluster answers")
    }
}

/// The client of the server.
pub fn psql_command() -> Command {
    Command::new(programs().join("psql"))
}

fn psql(url: &str, sql: &str) -> Result<String, String> {
    let mut psql = psql_command();
    psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"])
        .args(["-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose"])
        .args(["--dbname", url, "--command", sql])
        .stdin(Stdio::null());
    let output = psql.output().expect("psql comes with the server");
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}

/// A server with its databases, which ends with this value.
#[derive(Debug)]
pub struct Cluster {
    port: u16,
    folder: PathBuf,
    options: Vec<String>,
    running: Option<Running>,
    databases: AtomicU32,
}

impl Cluster {
    /// One that does not wait for the disk.
    pub fn start() -> Self {
        Cluster::with(&[
            "fsync=off",
            "full_page_writes=off",
            "synchronous_commit=off",
            "max_prepared_transactions=4",
        ])
    }

    /// One that has written what it has answered, and has it after a crash. The machine goes on, so
    /// it is enough that the system has what was written: nobody waits for the disk.
    pub fn durable() -> Self {
        Cluster::with(&["fsync=off"])
    }

    /// One with settings of its own, as `name=value`.
    pub fn with(settings: &[&str]) -> Self {
        Cluster::made(settings, Cluster::create)
    }

    /// A standby of the server that is reached by this port. It streams what that server writes.
    pub fn standby_of(primary: u16) -> Self {
        Cluster::made(&["fsync=off"], |standby| standby.copy(primary))
    }

    fn made(settings: &[&str], make: impl Fn(&Cluster)) -> Self {
        let options: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        somewhere("postgres", &PORTS, |port, folder| {
            let mut cluster = Cluster {
                port,
                folder,
                options: options.clone(),
                running: None,
                databases: AtomicU32::new(0),
            };
            make(&cluster);
            cluster.launch().then_some(cluster)
        })
    }

    /// A new, empty database.
    pub fn database(&self) -> Database {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{number}");
        let database = Database {
            port: self.port,
            name: "postgres".to_owned(),
        };
        let made = database.psql(&format!("create database {name}"));
        made.unwrap_or_else(|error| panic!("{error}\n{}", self.complaint()));
        Database { name, ..database }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Ends it as a crash would: nothing is written that was not written before.
    pub fn crash(&mut self) {
        self.running = None;
    }

    /// Starts it again on the same port, after crashing it if it runs.
    pub fn restart(&mut self) {
        self.crash();
        assert!(
            self.launch(),
            "the server starts again: {}",
            self.complaint()
        );
    }

    /// Starts it again without numbers for further transactions, as after two thousand million of
    /// them without a vacuum. It accepts no writes until the result is dropped, and a moment
    /// longer.
    pub fn use_up_numbers(&mut self, database: &Database) -> Client {
        self.psql("checkpoint").expect("a superuser");
        self.crash();
        let _ = fs::remove_file(self.data().join("postmaster.pid"));
        let mut reset = unprivileged("pg_resetwal");
        reset
            .args(["-f", "-x", "2147483648", "-D"])
            .arg(self.data());
        let output = reset.output().expect("pg_resetwal comes with the server");
        assert!(output.status.success(), "{}", text(&output.stderr));
        // The file of the states of those transactions.
        let states = self.data().join("pg_xact/0800");
        fs::write(&states, vec![0; 256 * 1_024]).expect("a file");
        give(&states);
        assert!(self.launch(), "it starts: {}", self.complaint());
        // It keeps the vacuum from the table, and with it from its end.
        let mut holder = database.client();
        holder
            .batch_execute("begin; lock table tourbillon.meta in share update exclusive mode")
            .expect("it needs no number");
        holder
    }

    /// Waits until it accepts writes again.
    pub fn number_again(&self) {
        let databases = self.psql("select datname from pg_database where datallowconn");
        for name in databases.expect("a superuser").lines() {
            let url = format!("postgres://postgres@127.0.0.1:{}/{name}", self.port);
            psql(&url, "vacuum (freeze)").expect("a superuser");
        }
        let start = Instant::now();
        // The server itself sees to `template0`, where nobody can connect.
        while self.psql("select pg_current_xact_id()").is_err() {
            assert!(start.elapsed() < PATIENCE, "{}", self.complaint());
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }

    /// Starts it again as a standby, of a primary that does not exist.
    pub fn stand_by(&mut self) {
        self.crash();
        fs::write(self.data().join("standby.signal"), "").expect("a file");
        self.restart();
    }

    /// Makes a standby a primary.
    pub fn promote(&self) {
        let promoted = psql(&self.url(), "select pg_promote(true, 60)");
        assert_eq!(promoted.as_deref(), Ok("t"), "{}", self.complaint());
    }

    /// What `psql` prints for these statements in the database `postgres`.
    pub fn psql(&self, sql: &str) -> Result<String, String> {
        psql(&self.url(), sql)
    }

    /// Sets who may connect, and how, by the lines of a `pg_hba.conf`.
    pub fn admit(&self, lines: &str) {
        fs::write(self.data().join("pg_hba.conf"), lines).expect("the file of the cluster");
        self.psql("select pg_reload_conf()").expect("a superuser");
    }

    fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Makes the files of the cluster.
    fn create(&self) {
        give(&self.folder);
        let mut initdb = unprivileged("initdb");
        initdb
            .args([
                "--username",
                "postgres",
                "--auth",
                "trust",
                "--encoding",
                "UTF8",
            ])
            .args(["--locale", "C", "--no-sync", "--pgdata"])
            .arg(self.data())
            .stdin(Stdio::null());
        let output: Output = initdb.output().expect("initdb comes with the server");
        let error = text(&output.stderr);
        assert!(output.status.success(), "initdb: {error}");
    }

    /// Copies the files of a running server, with the settings of a standby.
    fn copy(&self, primary: u16) {
        give(&self.folder);
        let mut copy = unprivileged("pg_basebackup");
        copy.args(["--host", "127.0.0.1", "--port", &primary.to_string()])
            .args([
                "--username",
                "postgres",
                "--checkpoint",
                "fast",
                "--no-sync",
            ])
            .args(["--write-recovery-conf", "--pgdata"])
            .arg(self.data())
            .stdin(Stdio::null());
        let output = copy.output().expect("pg_basebackup comes with the server");
        let error = text(&output.stderr);
        assert!(output.status.success(), "pg_basebackup: {error}");
    }

    /// Starts the server and waits until it answers; false if another program has the port.
    fn launch(&mut self) -> bool {
        let mut server = unprivileged("postgres");
        server.arg("-D").arg(self.data());
        let socket = format!("unix_socket_directories={}", self.folder.display());
        let fixed = [
            format!("port={}", self.port),
            "listen_addresses=127.0.0.1".to_owned(),
            socket,
            "max_connections=200".to_owned(),
            "shared_buffers=64MB".to_owned(),
            // Each message begins with its database.
            "log_line_prefix=%d|".to_owned(),
        ];
        for setting in fixed.iter().chain(&self.options) {
            server.args(["-c", setting]);
        }
        let url = self.url();
        // Another process's server would have another folder.
        let own = || {
            psql(&url, "show data_directory").is_ok_and(|folder| Path::new(&folder) == self.data())
        };
        self.running = Running::launch(server, &self.folder, "-QUIT", |_| own());
        self.running.is_some()
    }

    fn log(&self) -> Vec<u8> {
        fs::read(self.folder.join("log")).unwrap_or_default()
    }

    /// The log, for a person.
    fn complaint(&self) -> String {
        log_of(&self.folder)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.running = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The folder of the server's programs. The build scripts of the crates look at the same places.
pub fn programs() -> &'static Path {
    FOUND
        .as_deref()
        .expect("the programs of a server are there")
}

/// Whether the programs of a server are there.
pub fn is_there() -> bool {
    FOUND.is_some()
}

static FOUND: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let versions = Path::new("/usr/lib/postgresql").read_dir();
    let versions = versions.into_iter().flatten().flatten();
    folders.extend(versions.map(|version| version.path().join("bin")));
    folders.into_iter().find(|folder| {
        let programs = ["initdb", "postgres", "psql"];
        programs.iter().all(|name| folder.join(name).is_file())
    })
});

/// Gives a folder to the user that the server runs as.
pub fn give(folder: &Path) {
    if is_root() {
        let status = Command::new("chown")
            .args(["-R", OWNER])
            .arg(folder)
            .status();
        assert!(status.is_ok_and(|status| status.success()), "chown {OWNER}");
    }
}

/// A program of the server, as a user that it accepts.
fn unprivileged(program: &str) -> Command {
    as_owner(&programs().join(program))
}

/// A program as the user that owns the cluster.
pub fn as_owner(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", OWNER, "--regid", OWNER, "--clear-groups", "--"])
        .arg(program)
        // The folder of the tests may be closed to that user.
        .current_dir("/");
    command
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
