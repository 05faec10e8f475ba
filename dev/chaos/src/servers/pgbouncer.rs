//! A PgBouncer of a test's own, before the cluster of a database.

use std::env;
use std::fs;
use std::path::PathBuf;

use postgres::{Client, Error, NoTls};

use super::postgres::{Database, PORTS, as_owner, give};
use super::{KILL, Running, log_of, somewhere};

/// A pooler that ends with this value.
#[derive(Debug)]
pub struct Pooler {
    port: u16,
    folder: PathBuf,
    running: Option<Running>,
}

impl Pooler {
    /// One before this database, with a mode such as `transaction`, and more lines of settings.
    pub fn start(database: &Database, mode: &str, more: &str) -> Pooler {
        somewhere("pgbouncer", &PORTS, |port, folder| {
            let settings = format!(
                "[databases]\n* = host=127.0.0.1 port={} user=postgres\n\
                 [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
                 auth_type = any\npool_mode = {mode}\n{more}\n",
                database.port(),
            );
            let file = folder.join("pgbouncer.ini");
            fs::write(&file, settings).expect("a file");
            give(&folder);
            let mut program = as_owner(&program());
            program.arg(&file);
            let mut pooler = Pooler {
                port,
                folder,
                running: None,
            };
            let answers = || pooler.client(database).is_ok();
            pooler.running = Running::launch(program, &pooler.folder, KILL, |_| answers());
            pooler.running.is_some().then_some(pooler)
        })
    }

    /// The URL of the database by the pooler, for the owner of the cluster.
    pub fn url(&self, database: &Database) -> String {
        database.url_by(self.port)
    }

    /// A connection to the database by the pooler.
    pub fn client(&self, database: &Database) -> Result<Client, Error> {
        Client::connect(&self.url(database), NoTls)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.running = None;
        if std::thread::panicking() {
            eprintln!("{}", log_of(&self.folder));
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Where the program is. The build scripts of the crates look at the same places.
fn program() -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let mut programs = folders.map(|folder| folder.join("pgbouncer"));
    let found = programs.find(|program| program.is_file());
    found.expect("pgbouncer is there")
}
