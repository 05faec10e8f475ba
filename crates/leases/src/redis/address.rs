//! Where a server is, as a URL says it.

use std::fmt;
use std::path::PathBuf;

use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo,
};

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// The port of a Sentinel whose address names none.
const PORT: u16 = 26_379;

pub(super) enum Address {
    Tcp(String, u16),
    Unix(PathBuf),
    /// The master that these name.
    Sentinels(Sentinels),
    /// The cluster to which these belong.
    Cluster(Seeds),
}

/// The nodes of a cluster that can be asked for all of them.
pub(super) struct Seeds {
    /// Those of the URL.
    hosts: Vec<(String, u16)>,
    /// The masters that were found last.
    found: Mutex<Vec<(String, u16)>>,
    /// How often somebody has asked.
    turn: AtomicUsize,
    /// How often somebody has begun to listen.
    listens: AtomicUsize,
}

impl Seeds {
    /// Returns all nodes that are known. Each time another one is the first.
    pub(super) fn in_turn(&self) -> Vec<(String, u16)> {
        self.all(&self.turn)
    }

    /// The same for listeners, who have a turn of their own.
    pub(super) fn to_listen(&self) -> Vec<(String, u16)> {
        self.all(&self.listens)
    }

    fn all(&self, turn: &AtomicUsize) -> Vec<(String, u16)> {
        let mut all = self.masters();
        let new = self.hosts.iter().filter(|host| !all.contains(host));
        let new: Vec<_> = new.cloned().collect();
        all.extend(new);
        // Relaxed: any number will do.
        let turn = turn.fetch_add(1, Ordering::Relaxed) % all.len();
        all.rotate_left(turn);
        all
    }

    /// Returns the masters that were found last.
    pub(super) fn masters(&self) -> Vec<(String, u16)> {
        self.found.lock().clone()
    }

    /// Replaces the masters that are known.
    pub(super) fn found(&self, masters: Vec<(String, u16)>) {
        *self.found.lock() = masters;
    }
}

/// The Sentinels of a master.
pub(super) struct Sentinels {
    pub(super) hosts: Vec<(String, u16)>,
    /// The name of the master.
    pub(super) master: String,
    /// How to log in to them.
    pub(super) login: RedisConnectionInfo,
}

/// Reads a URL. Returns the address, and how to log in to the server.
pub(super) fn read(
    url: &str,
    sentinel_login: &RedisConnectionInfo,
) -> Result<(Address, RedisConnectionInfo), String> {
    // The stream with TLS is made elsewhere (`server.rs`), so the crate `redis` gets a plain URL.
    let (scheme, rest) = url.split_once("://").unwrap_or(("", ""));
    let (info, several) = match scheme {
        "redis-sentinel" | "rediss-sentinel" => {
            let at = Several::of(rest, "Sentinels")?;
            let (master, database) = at.path.split_once('/').unwrap_or((at.path, ""));
            if master.is_empty() {
                return Err("the name of a master is missing behind the Sentinels".to_owned());
            }
            let sentinels = Sentinels {
                hosts: at.hosts(Some(PORT))?,
                master: master.to_owned(),
                login: sentinel_login.clone(),
            };
            let info = one(&at.plain(0, database))?;
            (info, Some(Address::Sentinels(sentinels)))
        }
        "redis-cluster" | "rediss-cluster" => {
            let at = Several::of(rest, "a cluster")?;
            if !matches!(at.path, "" | "0") {
                return Err("a cluster has only the database 0".to_owned());
            }
            let seeds = Seeds {
                hosts: at.hosts(None)?,
                found: Mutex::default(),
                turn: AtomicUsize::new(0),
                listens: AtomicUsize::new(0),
            };
            (one(&at.plain(0, ""))?, Some(Address::Cluster(seeds)))
        }
        "rediss" | "valkeys" => (one(&format!("redis://{rest}"))?, None),
        _ => (one(url)?, None),
    };
    let address = match (several, info.addr()) {
        (Some(several), _) => several,
        (None, ConnectionAddr::Tcp(host, port)) => Address::Tcp(host.clone(), *port),
        (None, ConnectionAddr::Unix(path)) => Address::Unix(path.clone()),
        _ => return Err("no such kind of address is known".to_owned()),
    };
    let login = info.redis_settings().clone().set_skip_set_lib_name();
    // The third version of the protocol has other answers, and Redis 5 does not have it.
    Ok((address, login.set_protocol(ProtocolVersion::RESP2)))
}

impl Address {
    /// The hosts, whose certificates have these names.
    #[cfg(feature = "redis-tls")]
    pub(super) fn hosts(&self) -> Vec<&str> {
        match self {
            Address::Tcp(host, _) => vec![host],
            Address::Unix(_) => Vec::new(),
            Address::Sentinels(Sentinels { hosts, .. }) | Address::Cluster(Seeds { hosts, .. }) => {
                hosts.iter().map(|(host, _)| &**host).collect()
            }
        }
    }
}

/// The parts of a URL `USER:PASSWORD@HOST,HOST/PATH`.
struct Several<'a> {
    /// With the `@`, or empty.
    login: &'a str,
    hosts: Vec<&'a str>,
    path: &'a str,
}

impl<'a> Several<'a> {
    fn of(rest: &'a str, what: &str) -> Result<Self, String> {
        let (login, behind) = match rest.rfind('@') {
            Some(at) => rest.split_at(at + 1),
            None => ("", rest),
        };
        let (hosts, path) = behind.split_once('/').unwrap_or((behind, ""));
        if behind.contains(['?', '#']) {
            return Err(format!("a URL of {what} has no options"));
        }
        let hosts = hosts.split(',').collect();
        Ok(Several { login, hosts, path })
    }

    /// The URL as if one of the hosts were the server.
    fn plain(&self, at: usize, database: &str) -> String {
        let host = self.hosts[at];
        format!("redis://{}{host}/{database}", self.login)
    }

    /// Returns the hosts. One without a port has this one, or that of a server.
    fn hosts(&self, default: Option<u16>) -> Result<Vec<(String, u16)>, String> {
        let each = (0..self.hosts.len()).map(|at| {
            let info = one(&self.plain(at, ""))?;
            let (host, port) = tcp(&info).ok_or("these are no hosts")?;
            // The crate fills in the port of a server.
            let behind = self.hosts[at].rsplit(']').next().unwrap_or_default();
            match behind.split_once(':') {
                None => Ok((host, default.unwrap_or(port))),
                Some((_, "")) => Err(format!("the port of {host} is missing behind the colon")),
                Some(_) => Ok((host, port)),
            }
        });
        each.collect()
    }
}

/// Reads a URL of the crate `redis`.
fn one(url: &str) -> Result<ConnectionInfo, String> {
    url.into_connection_info().map_err(|error| {
        let described = described(&error);
        match error.detail() {
            Some(detail) => format!("{described} ({detail})"),
            None => described,
        }
    })
}

/// Returns the host and the port, if there are any.
fn tcp(info: &ConnectionInfo) -> Option<(String, u16)> {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) => Some((host.clone(), *port)),
        _ => None,
    }
}

/// Returns the message of an error of the crate `redis`, without the kind that it appends.
fn described(error: &redis::RedisError) -> String {
    let text = error.to_string();
    text.split(" - ").next().unwrap_or_default().to_owned()
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => path.display().fmt(f),
            Address::Sentinels(sentinels) => {
                write!(f, "{} of the Sentinels ", sentinels.master)?;
                list(&sentinels.hosts, f)
            }
            Address::Cluster(seeds) => {
                f.write_str("the cluster of ")?;
                list(&seeds.hosts, f)
            }
        }
    }
}

fn list(hosts: &[(String, u16)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (at, (host, port)) in hosts.iter().enumerate() {
        let between = if at == 0 { "" } else { "," };
        write!(f, "{between}{host}:{port}")?;
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn listeners_take_turns_of_their_own() {
        let login = RedisConnectionInfo::default();
        let Ok((Address::Cluster(seeds), _)) = read("redis-cluster://a,b,c/", &login) else {
            panic!("it names a cluster");
        };
        let first = |all: Vec<(String, u16)>| all[0].0.clone();
        let listens: Vec<_> = (0..3)
            .map(|_| {
                // One question for each attempt to listen.
                let _ = seeds.in_turn();
                first(seeds.to_listen())
            })
            .collect();
        assert_eq!(listens, ["a", "b", "c"]);
        seeds.found(vec![("d".to_owned(), 1)]);
        assert_eq!(first(seeds.in_turn()), "c");
        assert_eq!(seeds.masters(), [("d".to_owned(), 1)]);
    }
}
