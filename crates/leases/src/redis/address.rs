//! Where a server is, as a URL says it.

use std::fmt;
use std::path::PathBuf;

use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo,
};

/// The port of a Sentinel whose address names none.
const PORT: u16 = 26_379;

pub(super) enum Address {
    Tcp(String, u16),
    Unix(PathBuf),
    /// The master that these name.
    Sentinels(Sentinels),
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
    let (info, sentinels) = match scheme {
        "redis-sentinel" | "rediss-sentinel" => {
            let at = AtSentinels::of(rest)?;
            let sentinels = Sentinels {
                hosts: at.hosts()?,
                master: at.master.to_owned(),
                login: sentinel_login.clone(),
            };
            (one(&at.plain(0))?, Some(sentinels))
        }
        "rediss" | "valkeys" => (one(&format!("redis://{rest}"))?, None),
        _ => (one(url)?, None),
    };
    let address = match (sentinels, info.addr()) {
        (Some(sentinels), _) => Address::Sentinels(sentinels),
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
            Address::Sentinels(sentinels) => {
                let hosts = sentinels.hosts.iter();
                hosts.map(|(host, _)| &**host).collect()
            }
        }
    }
}

/// The parts of a URL `USER:PASSWORD@HOST,HOST/MASTER/DATABASE`.
struct AtSentinels<'a> {
    /// With the `@`, or empty.
    login: &'a str,
    hosts: Vec<&'a str>,
    master: &'a str,
    database: &'a str,
}

impl<'a> AtSentinels<'a> {
    fn of(rest: &'a str) -> Result<Self, String> {
        let (login, behind) = match rest.rfind('@') {
            Some(at) => rest.split_at(at + 1),
            None => ("", rest),
        };
        let (hosts, path) = behind.split_once('/').unwrap_or((behind, ""));
        let (master, database) = path.split_once('/').unwrap_or((path, ""));
        if master.is_empty() {
            return Err("the name of a master is missing behind the Sentinels".to_owned());
        }
        if behind.contains(['?', '#']) {
            return Err("a URL of Sentinels has no options".to_owned());
        }
        let hosts = hosts.split(',').collect();
        Ok(AtSentinels {
            login,
            hosts,
            master,
            database,
        })
    }

    /// The URL as if one of the Sentinels were the server.
    fn plain(&self, at: usize) -> String {
        let host = self.hosts[at];
        format!("redis://{}{host}/{}", self.login, self.database)
    }

    fn hosts(&self) -> Result<Vec<(String, u16)>, String> {
        let each = (0..self.hosts.len()).map(|at| {
            let info = one(&self.plain(at))?;
            let (host, port) = tcp(&info).ok_or("a Sentinel is a host")?;
            // The crate fills in the port of a server.
            let behind = self.hosts[at].rsplit(']').next().unwrap_or_default();
            match behind.split_once(':') {
                None => Ok((host, PORT)),
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
            Address::Sentinels(sentinels) => sentinels.fmt(f),
        }
    }
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of the Sentinels", self.master)?;
        for (at, (host, port)) in self.hosts.iter().enumerate() {
            let between = if at == 0 { " " } else { "," };
            write!(f, "{between}{host}:{port}")?;
        }
        Ok(())
    }
}
