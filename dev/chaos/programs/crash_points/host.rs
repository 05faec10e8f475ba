//! What the parent does to the server.

use std::sync::Mutex;

use chaos::servers::postgres::{self, Cluster};

use crate::child::{LONGER, pause};
use crate::database::Fault;
use crate::point::{Cause, Point};
use crate::postgres::Server;

/// Where the timers are, as the parent sees it.
pub(crate) enum Host {
    /// In a file.
    File,
    /// On a server that goes on whatever happens here.
    Foreign(Server),
    /// On a server that belongs to this program.
    Own(Server, Mutex<Cluster>),
}

impl Host {
    /// Starts a server, and returns the URL of a database.
    pub(crate) fn start() -> Result<(Self, String), Fault> {
        if !postgres::is_there() {
            return Err("there is no PostgreSQL server: apt-get install postgresql".into());
        }
        let cluster = Cluster::durable();
        let url = cluster.database().url();
        let server = Server::new(&url, Point::None)?;
        Ok((Host::Own(server, Mutex::new(cluster)), url))
    }

    /// Uses a server that runs already.
    pub(crate) fn at(url: &str) -> Result<Self, Fault> {
        Ok(Host::Foreign(Server::new(url, Point::None)?))
    }

    /// Whether the point can be brought about here.
    pub(crate) fn has(&self, point: Point) -> bool {
        match (self, point.cause()) {
            (_, Cause::Failpoint | Cause::Signal) | (Host::Own(..), _) => true,
            (Host::File, _) => false,
            (Host::Foreign(_), Cause::Server) => point == Point::Terminate,
            (Host::Foreign(_), Cause::Answer | Cause::Path) => true,
        }
    }

    /// Brings a point about whose cause is the server.
    pub(crate) fn bring_about(&self, point: Point) -> Result<(), Fault> {
        match self {
            Host::File => return Err("a file has no server".into()),
            Host::Foreign(server) => terminate(server)?,
            Host::Own(server, cluster) => {
                // One lane at a time: the other one waits until the server is there again.
                let mut cluster = cluster
                    .lock()
                    .expect("a server that does not start ends the program");
                match point {
                    Point::Restart => cluster.restart(),
                    Point::Outage => {
                        cluster.crash();
                        pause(LONGER);
                        cluster.restart();
                    }
                    _ => terminate(server)?,
                }
            }
        }
        Ok(())
    }
}

/// Ends all connections to the database, except this one.
fn terminate(server: &Server) -> Result<(), Fault> {
    let all = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
               where datname = current_database() and pid <> pg_backend_pid()";
    server.client()?.execute(all, &[])?;
    Ok(())
}
