//! The servers that a URL names. Each address has a time limit of its own. So a server that accepts
//! connections and never answers does not keep the next one from being tried.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::timeout;
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::{Client, Config, Error};

use crate::error::PostgresError;
use crate::failure::not_connected;
use crate::parameters::SOCKET_FOLDERS;
use crate::password::Passwords;
use crate::security::{Driven, Security};
use crate::session::{self, Session};

/// The default time limit for one address.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The servers that a URL names, in its order.
pub(crate) struct Hosts {
    /// The settings that all hosts share. It names no host.
    common: Config,
    each: Vec<Server>,
    /// The time limit for one address, until the server is ready for statements.
    limit: Duration,
    security: Security,
    passwords: Passwords,
}

/// One host of a URL.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Server {
    host: Option<Host>,
    /// The address of the URL. If there is one, the name is not looked up.
    address: Option<IpAddr>,
    port: u16,
}

impl Server {
    /// Returns the name for errors.
    fn name(&self) -> String {
        match (&self.host, self.address) {
            (Some(Host::Tcp(name)), _) => format!("{name}:{}", self.port),
            #[cfg(unix)]
            (Some(Host::Unix(path)), _) => format!("{}:{}", path.display(), self.port),
            (None, Some(address)) => format!("{address}:{}", self.port),
            (None, None) => String::new(),
        }
    }

    /// Returns the names of the server in a file of passwords.
    fn names(&self) -> Vec<String> {
        match (&self.host, self.address) {
            (Some(Host::Tcp(name)), _) => vec![name.clone()],
            #[cfg(unix)]
            (Some(Host::Unix(path)), _) => {
                let is_usual = SOCKET_FOLDERS
                    .iter()
                    .any(|folder| path == Path::new(folder));
                let usual = is_usual.then(|| "localhost".to_owned());
                usual
                    .into_iter()
                    .chain([path.display().to_string()])
                    .collect()
            }
            (None, address) => address.iter().map(ToString::to_string).collect(),
        }
    }
}

impl Hosts {
    /// Reads the hosts of a configuration.
    pub(crate) fn new(
        config: &Config,
        security: Security,
        passwords: Passwords,
    ) -> Result<Self, PostgresError> {
        let each = servers(config).map_err(|why| {
            PostgresError::Refused(format!("the URL of the database can't be used: {why}"))
        })?;
        Ok(Hosts {
            common: without_hosts(config),
            each,
            limit: config
                .get_connect_timeout()
                .copied()
                .unwrap_or(CONNECT_LIMIT),
            security,
            passwords,
        })
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.each.iter().map(Server::name).collect()
    }

    pub(crate) fn database(&self) -> Option<&str> {
        self.common.get_dbname()
    }

    /// Connects to the first server that accepts it, with these settings, and runs the statements
    /// `first` there. The current runtime drives the connection, and calls `notified` with the
    /// channel and the payload of each notification.
    pub(crate) async fn connect(
        &self,
        session: &Session,
        first: &str,
        notified: impl Fn(&str, &str) + Clone + Send + 'static,
    ) -> Result<(Client, Driven), PostgresError> {
        let asked = match &self.passwords {
            Passwords::Asked(ask) => Some(ask.ask().await?),
            _ => None,
        };
        let mut failed = Vec::new();
        for server in self.in_order() {
            let found = match timeout(self.limit, self.addresses(server)).await {
                Ok(found) => found,
                Err(_) => Err(self.silence("no answer to the name")),
            };
            let addresses = match found {
                Ok(addresses) => addresses,
                Err(error) => {
                    failed.push((server, error));
                    continue;
                }
            };
            let (password, left_out) = match &self.passwords {
                Passwords::InFile(file) => match file.password(&server.names(), server.port) {
                    Ok(password) => (password, None),
                    Err(why) => (None, Some(why)),
                },
                _ => (asked.clone(), None),
            };
            for address in addresses {
                let mut config = self.at(server, address);
                if let Some(password) = &password {
                    config.password(password);
                }
                let connect = async {
                    let connected = self.connect_to(&config, session, notified.clone()).await?;
                    let begun = connected.0.batch_execute(first).await;
                    begun.map_err(|error| not_connected(&error))?;
                    Ok(connected)
                };
                match timeout(self.limit, connect).await {
                    Ok(Ok(connected)) => return Ok(connected),
                    Ok(Err(PostgresError::Refused(why))) => {
                        // The file of passwords that was left out may have had the password.
                        let more = left_out.iter().map(|why| format!("; {why}"));
                        let why = why + &more.collect::<String>();
                        failed.push((server, PostgresError::Refused(why)));
                    }
                    Ok(Err(error)) => failed.push((server, error)),
                    Err(_) => failed.push((server, self.silence("no connection"))),
                }
            }
        }
        Err(together(failed))
    }

    /// Connects to one address, which may be that of a pooler.
    async fn connect_to(
        &self,
        config: &Config,
        session: &Session,
        notified: impl Fn(&str, &str) + Clone + Send + 'static,
    ) -> Result<(Client, Driven), PostgresError> {
        let failed = |error: Error| not_connected(&error);
        let mark = session::mark();
        let mut with_options = config.clone();
        with_options.options(session.options(config.get_options(), &mark));
        match self.security.connect(&with_options, notified.clone()).await {
            Ok(connected) => {
                if session::has(&connected.0, &mark).await.map_err(failed)? {
                    return Ok(connected);
                }
            }
            Err(error) if session::is_refused(&error) => {}
            Err(error) => return Err(failed(error)),
        }
        let connected = self.security.connect(config, notified).await;
        let connected = connected.map_err(failed)?;
        let (other, _task) = self
            .security
            .connect(config, |_, _| ())
            .await
            .map_err(failed)?;
        session::check_pooler(&connected.0, &other).await?;
        let set = connected.0.batch_execute(&session.statements()).await;
        set.map_err(failed)?;
        Ok(connected)
    }

    fn silence(&self, what: &str) -> PostgresError {
        PostgresError::Unavailable(format!("{what} within {:?}", self.limit))
    }

    /// Returns the hosts in the order in which they are tried.
    fn in_order(&self) -> Vec<&Server> {
        let mut servers: Vec<&Server> = self.each.iter().collect();
        if self.common.get_load_balance_hosts() == LoadBalanceHosts::Random {
            let random = RandomState::new();
            let mut order: Vec<_> = (0..servers.len()).collect();
            order.sort_by_cached_key(|index| random.hash_one(index));
            servers = order.into_iter().map(|index| servers[index]).collect();
        }
        servers
    }

    /// Returns the addresses of a host. The path of a socket has the address `None`.
    async fn addresses(&self, server: &Server) -> Result<Vec<Option<IpAddr>>, PostgresError> {
        let name = match (&server.host, server.address) {
            (Some(Host::Tcp(name)), None) => name,
            (_, address) => return Ok(vec![address]),
        };
        let found = lookup_host((&**name, server.port)).await.map_err(|error| {
            PostgresError::Unavailable(format!("the name has no address: {error}"))
        })?;
        let found: Vec<_> = found.map(|address| Some(address.ip())).collect();
        match found.is_empty() {
            true => Err(PostgresError::Unavailable(
                "the name has no address".to_owned(),
            )),
            false => Ok(found),
        }
    }

    /// Returns the configuration for one address.
    fn at(&self, server: &Server, address: Option<IpAddr>) -> Config {
        let mut config = self.common.clone();
        config.port(server.port);
        match (&server.host, address) {
            (Some(Host::Tcp(name)), _) => config.host(name),
            #[cfg(unix)]
            (Some(Host::Unix(path)), _) => {
                // PostgreSQL has no TLS there, and nothing leaves the machine.
                config.ssl_mode(tokio_postgres::config::SslMode::Disable);
                config.host_path(path)
            }
            // As the name that a certificate must have.
            (None, Some(address)) => config.host(address.to_string()),
            (None, None) => &mut config,
        };
        if let Some(address) = address {
            config.hostaddr(address);
        }
        config
    }
}

/// Returns the hosts of a configuration, by the rules of `libpq`.
fn servers(config: &Config) -> Result<Vec<Server>, String> {
    let (hosts, addresses, ports) = (
        config.get_hosts(),
        config.get_hostaddrs(),
        config.get_ports(),
    );
    let number = hosts.len().max(addresses.len());
    if number == 0 {
        return Err("it names no host".to_owned());
    }
    for (what, found) in [("hosts", hosts.len()), ("hostaddrs", addresses.len())] {
        if found != 0 && found != number {
            return Err(format!("it has {found} {what}, and {number} are needed"));
        }
    }
    if ports.len() > 1 && ports.len() != number {
        let found = ports.len();
        return Err(format!("it has {found} ports for {number} hosts"));
    }
    let server = |index: usize| Server {
        host: hosts.get(index).cloned(),
        address: addresses.get(index).copied(),
        port: ports.get(index).or(ports.first()).copied().unwrap_or(5432),
    };
    Ok((0..number).map(server).collect())
}

/// Returns a copy without hosts, addresses and ports. The driver has no function for this.
fn without_hosts(config: &Config) -> Config {
    let mut copy = Config::new();
    if let Some(user) = config.get_user() {
        copy.user(user);
    }
    if let Some(password) = config.get_password() {
        copy.password(password);
    }
    if let Some(dbname) = config.get_dbname() {
        copy.dbname(dbname);
    }
    if let Some(options) = config.get_options() {
        copy.options(options);
    }
    if let Some(name) = config.get_application_name() {
        copy.application_name(name);
    }
    if let Some(limit) = config.get_connect_timeout() {
        copy.connect_timeout(*limit);
    }
    if let Some(limit) = config.get_tcp_user_timeout() {
        copy.tcp_user_timeout(*limit);
    }
    copy.keepalives(config.get_keepalives());
    copy.keepalives_idle(config.get_keepalives_idle());
    if let Some(interval) = config.get_keepalives_interval() {
        copy.keepalives_interval(interval);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        copy.keepalives_retries(retries);
    }
    copy.ssl_mode(config.get_ssl_mode());
    copy.ssl_negotiation(config.get_ssl_negotiation());
    copy.target_session_attrs(config.get_target_session_attrs());
    copy.channel_binding(config.get_channel_binding());
    copy.load_balance_hosts(config.get_load_balance_hosts());
    copy
}

/// Joins the errors of several failed attempts. The result may pass if one of the errors may.
fn together(failed: Vec<(&Server, PostgresError)>) -> PostgresError {
    let may_pass = failed.iter().any(|(_, error)| error.may_pass());
    let is_one = failed.len() == 1;
    let parts = failed.into_iter().map(|(server, error)| {
        let why = match error {
            PostgresError::Unavailable(why)
            | PostgresError::Unknown(why)
            | PostgresError::Refused(why) => why,
            PostgresError::Forked => error.to_string(),
        };
        match is_one {
            true => why,
            false => format!("{}: {why}", server.name()),
        }
    });
    let why = parts.collect::<Vec<_>>().join("; ");
    match may_pass {
        true => PostgresError::Unavailable(why),
        false => PostgresError::Refused(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Config {
        url.parse().expect("a URL")
    }

    #[test]
    fn hosts_addresses_and_ports_belong_together_in_their_order() {
        let names = |url: &str| {
            let hosts =
                Hosts::new(&config(url), Security::none(), Passwords::OfUrl).expect("hosts");
            hosts.names()
        };
        assert_eq!(names("postgres://a,b/x"), ["a:5432", "b:5432"]);
        assert_eq!(
            names("postgres://a:1,[::1]:2,c/x"),
            ["a:1", "::1:2", "c:5432"]
        );
        assert_eq!(names("host=a,b port=7"), ["a:7", "b:7"]);
        assert_eq!(names("host=a,b port=7,8"), ["a:7", "b:8"]);
        assert_eq!(
            names("hostaddr=1.2.3.4,::1 port=7,8"),
            ["1.2.3.4:7", "::1:8"]
        );
        assert_eq!(names("host=/run,b"), ["/run:5432", "b:5432"]);
    }

    #[test]
    fn hosts_that_do_not_fit_are_refused() {
        let cases = [
            ("user=x", "names no host"),
            ("host=a,b hostaddr=1.2.3.4", "1 hostaddrs, and 2 are needed"),
            ("host=a hostaddr=1.2.3.4,::1", "1 hosts, and 2 are needed"),
            ("host=a,b,c port=1,2", "2 ports for 3 hosts"),
        ];
        for (url, expected) in cases {
            let refused = Hosts::new(&config(url), Security::none(), Passwords::OfUrl)
                .err()
                .expect(url);
            assert!(!refused.may_pass(), "{refused}");
            assert!(refused.to_string().contains(expected), "{refused}");
        }
    }

    #[test]
    fn the_configuration_of_one_address_has_all_that_the_url_has() {
        let url = "host=a user=u password=p dbname=d options=o application_name=n sslmode=disable \
                   port=7 connect_timeout=1 tcp_user_timeout=2 keepalives=0 keepalives_idle=3 \
                   keepalives_interval=4 keepalives_retries=5 target_session_attrs=read-write \
                   channel_binding=disable load_balance_hosts=random hostaddr=1.2.3.4 \
                   sslnegotiation=direct";
        let whole = config(url);
        let hosts = Hosts::new(&whole, Security::none(), Passwords::OfUrl).expect("a host");
        let server = &hosts.each[0];
        assert_eq!(hosts.at(server, server.address), whole);
        // A field that a new version of the driver adds is missing in the URL above.
        let fields = format!("{:?}", Config::new()).matches(": ").count();
        assert_eq!(fields, 18, "does `without_hosts` copy all fields?");
    }

    #[test]
    fn an_address_that_was_looked_up_keeps_the_name_for_certificates() {
        let hosts = Hosts::new(&config("host=a port=7"), Security::none(), Passwords::OfUrl)
            .expect("a host");
        let address = "1.2.3.4".parse().ok();
        let expected = config("host=a hostaddr=1.2.3.4 port=7");
        assert_eq!(hosts.at(&hosts.each[0], address), expected);
        let hosts = Hosts::new(
            &config("hostaddr=1.2.3.4"),
            Security::none(),
            Passwords::OfUrl,
        )
        .expect("a host");
        let expected = config("host=1.2.3.4 hostaddr=1.2.3.4 port=5432");
        assert_eq!(hosts.at(&hosts.each[0], address), expected);
    }

    #[test]
    fn hosts_are_shuffled_when_the_url_asks_for_it_and_only_then() {
        let first = |url: &str| {
            let hosts =
                Hosts::new(&config(url), Security::none(), Passwords::OfUrl).expect("hosts");
            let first = (0..200).map(|_| hosts.in_order()[0].name());
            let mut first: Vec<_> = first.collect();
            first.sort();
            first.dedup();
            first.len()
        };
        assert_eq!(first("host=a,b,c"), 1);
        assert_eq!(first("host=a,b,c load_balance_hosts=random"), 3);
    }

    #[test]
    fn what_may_pass_at_one_host_may_pass() {
        let hosts =
            Hosts::new(&config("host=a,b"), Security::none(), Passwords::OfUrl).expect("hosts");
        let [a, b] = &hosts.each[..] else {
            panic!("two hosts")
        };
        let refused = || PostgresError::Refused("no".to_owned());
        let passing = || PostgresError::Unavailable("later".to_owned());
        assert_eq!(together(vec![(a, refused())]), refused());
        let mixed = PostgresError::Unavailable("a:5432: no; b:5432: later".to_owned());
        assert_eq!(together(vec![(a, refused()), (b, passing())]), mixed);
        let both = PostgresError::Refused("a:5432: no; b:5432: no".to_owned());
        assert_eq!(together(vec![(a, refused()), (b, refused())]), both);
    }
}
