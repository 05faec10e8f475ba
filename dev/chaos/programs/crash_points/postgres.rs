//! Timers and effects in a PostgreSQL database.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chaos::proxy::{Proxy, Trouble, Way};
use postgres::{Client, NoTls};
use tourbillon_durable::store::{NotificationListener, Store, StoreError, Subscription};
use tourbillon_durable::{Due, Postgres};

use crate::child;
use crate::database::{Database, Fault, Opened};
use crate::point::{Cause, Fuse, Point};

/// The effects are in a schema of their own, which the next run drops.
const EFFECTS: &str = "
    drop schema if exists crash_points cascade;
    create schema crash_points;
    create table crash_points.effect(key text not null, token text not null);
";

#[derive(Debug)]
pub(crate) struct Server {
    url: Url,
    /// Whether each connection takes a path on which something can happen.
    has_paths: bool,
    paths: Mutex<Paths>,
    /// Connections of the handlers that are not in use.
    idle: Mutex<Vec<Handlers>>,
}

#[derive(Debug, Default)]
struct Paths {
    open: Vec<Arc<Proxy>>,
    /// Those whose connections belong to the store. They stay open.
    of_doorbells: Vec<Arc<Proxy>>,
    /// What happens on all of them now.
    trouble: Option<Trouble>,
}

/// A connection of a handler.
struct Handlers {
    client: Client,
    path: Option<Arc<Proxy>>,
}

impl std::fmt::Debug for Handlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handlers")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// A URL, cut around the address of the server.
#[derive(Debug)]
struct Url {
    before: String,
    address: SocketAddr,
    after: String,
}

impl Url {
    fn parse(url: &str) -> Result<Self, Fault> {
        let bad =
            || format!("the URL must be `postgres://user@host:port/database`, and is {url:?}");
        let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
        let (place, database) = rest.split_once('/').ok_or_else(bad)?;
        let (user, host) = place.rsplit_once('@').ok_or_else(bad)?;
        let host = match host.rsplit_once(':') {
            Some(_) => host.to_owned(),
            None => format!("{host}:5432"),
        };
        let mut addresses = host
            .to_socket_addrs()
            .map_err(|error| format!("{host}: {error}"))?;
        Ok(Url {
            before: format!("{scheme}://{user}@"),
            address: addresses.next().ok_or_else(bad)?,
            after: format!("/{database}"),
        })
    }

    fn of(&self, address: SocketAddr) -> String {
        format!("{}{address}{}", self.before, self.after)
    }
}

impl Server {
    pub(crate) fn new(url: &str, point: Point) -> Result<Self, Fault> {
        Ok(Server {
            url: Url::parse(url)?,
            has_paths: matches!(point.cause(), Cause::Answer | Cause::Path),
            paths: Mutex::default(),
            idle: Mutex::default(),
        })
    }

    /// The URL for one connection, and the path that it takes.
    fn way(&self) -> Result<(String, Option<Arc<Proxy>>), std::io::Error> {
        if !self.has_paths {
            return Ok((self.url.of(self.url.address), None));
        }
        let path = Arc::new(Proxy::before(self.url.address, Duration::ZERO)?);
        let mut paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(trouble) = paths.trouble {
            path.begin(trouble, Way::Both);
        }
        paths.open.retain(|path| Arc::strong_count(path) > 1);
        paths.open.push(Arc::clone(&path));
        let url = self.url.of((Ipv4Addr::LOCALHOST, path.port()).into());
        Ok((url, Some(path)))
    }

    /// A connection that takes no path.
    pub(crate) fn client(&self) -> Result<Client, postgres::Error> {
        Client::connect(&self.url.of(self.url.address), NoTls)
    }

    fn handlers(&self) -> Result<Handlers, Fault> {
        let idle = self.idle.lock().expect("nothing panics under it").pop();
        if let Some(handlers) = idle {
            return Ok(handlers);
        }
        let (url, path) = self.way()?;
        Ok(Handlers {
            client: Client::connect(&url, NoTls)?,
            path,
        })
    }
}

impl Database for Server {
    fn prepare(&self) -> Result<(), Fault> {
        // The first connection makes the tables of the timers.
        Postgres::connect(&self.url.of(self.url.address))?;
        let mut client = self.client()?;
        client.batch_execute(EFFECTS)?;
        let ours = [child::PLAIN, child::EXACT].map(str::to_owned);
        client.execute(
            "delete from tourbillon.timer where queue = any($1)",
            &[&&ours[..]],
        )?;
        Ok(())
    }

    fn writers(&self) -> usize {
        4
    }

    fn connect(&self) -> Result<Opened, StoreError> {
        let way = self.way();
        let (url, path) = way.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let connection = Postgres::connect(&url)?.connect()?;
        Ok(Opened { connection, path })
    }

    fn listen(&self, listener: NotificationListener) -> Option<Subscription> {
        let (url, path) = self.way().ok()?;
        let subscription = Postgres::connect(&url).ok()?.listen(listener);
        let mut paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        paths.of_doorbells.extend(path);
        subscription
    }

    fn effect(&self, due: &Due<u64>, fuse: &Fuse, is_fenced: bool) -> Result<(), Fault> {
        let mut handlers = self.handlers()?;
        let mut transaction = handlers.client.transaction()?;
        let insert = "insert into crash_points.effect(key, token) values ($1, $2)";
        transaction.execute(insert, &[&due.key(), &due.token().to_string()])?;
        if is_fenced {
            due.complete_in(&mut transaction)?;
        }
        fuse.at(Point::BeforeCommit, || ());
        if let Some(path) = &handlers.path
            && fuse.burns(Point::LostCommit)
        {
            path.begin(Trouble::CutAfter(0), Way::Down);
            let committed = transaction.commit();
            path.end();
            if committed.is_err() {
                fuse.happens();
            }
            return Ok(committed?);
        }
        transaction.commit()?;
        fuse.at(Point::AfterCommit, || ());
        self.idle
            .lock()
            .expect("nothing panics under it")
            .push(handlers);
        Ok(())
    }

    fn effects(&self) -> Result<Vec<(String, String)>, Fault> {
        let rows = self
            .client()?
            .query("select key, token from crash_points.effect", &[])?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    fn trouble(&self, trouble: Option<Trouble>) {
        let mut paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        paths.trouble = trouble;
        for path in &paths.open {
            match trouble {
                Some(trouble) => path.begin(trouble, Way::Both),
                None => path.end(),
            }
        }
    }
}
