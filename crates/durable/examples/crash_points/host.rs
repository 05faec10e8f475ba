//! What the parent does to the server.

use crate::database::Fault;
use crate::point::{Cause, Point};

/// Where the timers are, as the parent sees it.
pub(crate) enum Host {
    /// In a file.
    File,
    /// On a server that goes on whatever happens here.
    #[cfg(feature = "postgres")]
    Foreign(crate::postgres::Server),
    /// On a server that belongs to this program.
    #[cfg(all(feature = "postgres", has_postgres))]
    Own(
        crate::postgres::Server,
        std::sync::Mutex<crate::cluster::Cluster>,
    ),
}

impl Host {
    /// Starts a server, and returns the URL of a database.
    #[cfg(all(feature = "postgres", has_postgres))]
    pub(crate) fn start() -> Result<(Self, String), Fault> {
        let cluster = crate::cluster::Cluster::durable();
        let url = cluster.database().url();
        let server = crate::postgres::Server::new(&url, Point::None)?;
        Ok((Host::Own(server, std::sync::Mutex::new(cluster)), url))
    }

    #[cfg(not(all(feature = "postgres", has_postgres)))]
    pub(crate) fn start() -> Result<(Self, String), Fault> {
        match cfg!(feature = "postgres") {
            true => {
                Err("there is no PostgreSQL server: apt-get install postgresql, build again".into())
            }
            false => {
                Err("this was built without PostgreSQL: run it with `--features postgres`".into())
            }
        }
    }

    /// Uses a server that runs already.
    pub(crate) fn at(url: &str) -> Result<Self, Fault> {
        #[cfg(feature = "postgres")]
        return Ok(Host::Foreign(crate::postgres::Server::new(
            url,
            Point::None,
        )?));
        #[cfg(not(feature = "postgres"))]
        Err(format!(
            "this was built without PostgreSQL, for {url}: run it with `--features postgres`"
        )
        .into())
    }

    /// Whether the point can be brought about here.
    pub(crate) fn has(&self, point: Point) -> bool {
        match (self, point.cause()) {
            (_, Cause::Failpoint | Cause::Signal) => true,
            (Host::File, _) => false,
            #[cfg(feature = "postgres")]
            (_, Cause::Answer | Cause::Path) => true,
            #[cfg(feature = "postgres")]
            (Host::Foreign(_), Cause::Server) => point == Point::Terminate,
            #[cfg(all(feature = "postgres", has_postgres))]
            (Host::Own(..), Cause::Server) => true,
        }
    }

    /// Brings a point about whose cause is the server.
    #[cfg_attr(
        not(feature = "postgres"),
        allow(unused_variables, reason = "a file has no such points")
    )]
    pub(crate) fn bring_about(&self, point: Point) -> Result<(), Fault> {
        match self {
            Host::File => Err("a file has no server".into()),
            #[cfg(feature = "postgres")]
            Host::Foreign(server) => terminate(server),
            #[cfg(all(feature = "postgres", has_postgres))]
            Host::Own(server, cluster) => {
                // One lane at a time: the other one waits until the server is there again.
                let mut cluster = cluster
                    .lock()
                    .expect("a server that does not start ends the program");
                match point {
                    Point::Restart => cluster.restart(),
                    Point::Outage => {
                        cluster.crash();
                        crate::child::pause(crate::child::LONGER);
                        cluster.restart();
                    }
                    _ => terminate(server)?,
                }
                Ok(())
            }
        }
    }
}

/// Ends all connections to the database, except this one.
#[cfg(feature = "postgres")]
fn terminate(server: &crate::postgres::Server) -> Result<(), Fault> {
    let all = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
               where datname = current_database() and pid <> pg_backend_pid()";
    server.client()?.execute(all, &[])?;
    Ok(())
}
