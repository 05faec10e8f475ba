//! The parameters of a connection, by the rules of `libpq`. They come from a URL or a string of
//! pairs, then from the file of services, then from the environment. An unsupported parameter is
//! refused, and the error names it.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{
    ChannelBinding, LoadBalanceHosts, SslMode, SslNegotiation, TargetSessionAttrs,
};

use crate::passfile::PasswordFile;
use crate::security::Encryption;
use crate::url;

/// Returns the value of a variable of the environment.
pub(crate) type Var<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Tells whether the crate uses a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Used,
    Refused,
}

/// All parameters of `libpq`, with their variables of the environment. A variable that is missing
/// here has no meaning without GSSAPI, or none that protects a connection.
const PARAMETERS: &[(&str, &str, Kind)] = &[
    ("application_name", "PGAPPNAME", Kind::Used),
    ("channel_binding", "PGCHANNELBINDING", Kind::Used),
    ("client_encoding", "", Kind::Used),
    ("connect_timeout", "PGCONNECT_TIMEOUT", Kind::Used),
    ("dbname", "PGDATABASE", Kind::Used),
    ("fallback_application_name", "", Kind::Used),
    ("gssencmode", "PGGSSENCMODE", Kind::Used),
    ("host", "PGHOST", Kind::Used),
    ("hostaddr", "PGHOSTADDR", Kind::Used),
    ("keepalives", "", Kind::Used),
    ("keepalives_count", "", Kind::Used),
    ("keepalives_idle", "", Kind::Used),
    ("keepalives_interval", "", Kind::Used),
    // The driver's name of `keepalives_count`.
    ("keepalives_retries", "", Kind::Used),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS", Kind::Used),
    ("options", "PGOPTIONS", Kind::Used),
    ("passfile", "PGPASSFILE", Kind::Used),
    ("password", "PGPASSWORD", Kind::Used),
    ("port", "PGPORT", Kind::Used),
    ("service", "PGSERVICE", Kind::Used),
    ("servicefile", "PGSERVICEFILE", Kind::Used),
    ("sslmode", "PGSSLMODE", Kind::Used),
    ("sslnegotiation", "PGSSLNEGOTIATION", Kind::Used),
    ("sslrootcert", "PGSSLROOTCERT", Kind::Used),
    ("target_session_attrs", "PGTARGETSESSIONATTRS", Kind::Used),
    ("tcp_user_timeout", "", Kind::Used),
    ("user", "PGUSER", Kind::Used),
    ("gssdelegation", "", Kind::Refused),
    ("gsslib", "", Kind::Refused),
    ("krbsrvname", "", Kind::Refused),
    ("max_protocol_version", "", Kind::Refused),
    (
        "min_protocol_version",
        "PGMINPROTOCOLVERSION",
        Kind::Refused,
    ),
    ("oauth_client_id", "", Kind::Refused),
    ("oauth_client_secret", "", Kind::Refused),
    ("oauth_issuer", "", Kind::Refused),
    ("oauth_scope", "", Kind::Refused),
    ("replication", "", Kind::Refused),
    ("require_auth", "PGREQUIREAUTH", Kind::Refused),
    ("requirepeer", "PGREQUIREPEER", Kind::Refused),
    ("requiressl", "PGREQUIRESSL", Kind::Refused),
    ("scram_client_key", "", Kind::Refused),
    ("scram_server_key", "", Kind::Refused),
    (
        "ssl_max_protocol_version",
        "PGSSLMAXPROTOCOLVERSION",
        Kind::Refused,
    ),
    (
        "ssl_min_protocol_version",
        "PGSSLMINPROTOCOLVERSION",
        Kind::Refused,
    ),
    ("sslcert", "PGSSLCERT", Kind::Refused),
    ("sslcertmode", "PGSSLCERTMODE", Kind::Refused),
    ("sslcompression", "", Kind::Refused),
    ("sslcrl", "PGSSLCRL", Kind::Refused),
    ("sslcrldir", "PGSSLCRLDIR", Kind::Refused),
    ("sslkey", "PGSSLKEY", Kind::Refused),
    ("sslkeylogfile", "", Kind::Refused),
    ("sslpassword", "", Kind::Refused),
    ("sslsni", "", Kind::Refused),
];

/// The folders in which servers of this machine have their sockets.
pub(crate) const SOCKET_FOLDERS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// The folders in which distributions keep the file of services of the whole machine.
const SYSTEM_FOLDERS: [&str; 2] = ["/etc/postgresql-common", "/etc/sysconfig/pgsql"];

/// The parameters of a URL, its service and the environment.
pub(crate) struct Parameters {
    pub(crate) config: Config,
    pub(crate) encryption: Encryption,
    /// The file of the trusted authorities, unless they are those of the system.
    pub(crate) root_certificate: Option<PathBuf>,
    /// The file that may have the password, unless the configuration has it.
    pub(crate) password_file: Option<PasswordFile>,
}

type Values = BTreeMap<&'static str, String>;

/// Reads all parameters. The error says what can't be read, and shows no password. It names
/// `builder`, the type with the functions that replace some parameters.
pub(crate) fn read(url: &str, var: Var<'_>, builder: &str) -> Result<Parameters, String> {
    let mut values = Values::new();
    for (name, value) in url::pairs(url)? {
        // As in `libpq`, the last one counts.
        values.insert(known(&name, builder)?, value);
    }
    let service = given(&values, "service").or_else(|| variable(var, "PGSERVICE"));
    if let Some(service) = service {
        for (name, value) in of_service(&service, &values, var, builder)? {
            values.entry(name).or_insert(value);
        }
    }
    for (name, of_environment, kind) in PARAMETERS {
        if of_environment.is_empty() || values.contains_key(name) {
            continue;
        }
        if let Some(value) = variable(var, of_environment) {
            if *kind == Kind::Refused {
                let refusal = refusal(name, builder);
                return Err(format!("{refusal} (from {of_environment})"));
            }
            values.insert(name, value);
        }
    }
    from_values(&values, var)
}

/// Returns the name of a parameter that the crate uses. Refuses all others.
fn known(name: &str, builder: &str) -> Result<&'static str, String> {
    match PARAMETERS.iter().find(|(known, ..)| *known == name) {
        Some((name, _, Kind::Used)) => Ok(name),
        Some((name, _, Kind::Refused)) => Err(refusal(name, builder)),
        None => Err(format!("there is no parameter {name:?}")),
    }
}

fn refusal(name: &str, builder: &str) -> String {
    let instead = match name {
        "sslcert" | "sslkey" | "sslpassword" => {
            format!(": use `{builder}::tls_client_certificate_pem`")
        }
        _ => String::new(),
    };
    format!("the parameter {name:?} is not supported{instead}")
}

fn variable(var: Var<'_>, name: &str) -> Option<String> {
    var(name).filter(|value| !value.is_empty())
}

fn given(values: &Values, name: &str) -> Option<String> {
    values.get(name).filter(|value| !value.is_empty()).cloned()
}

// === services ===

/// Returns the parameters of a service, from the user's file or from the file of the machine.
fn of_service(
    service: &str,
    values: &Values,
    var: Var<'_>,
    builder: &str,
) -> Result<Vec<(&'static str, String)>, String> {
    let named = given(values, "servicefile").or_else(|| variable(var, "PGSERVICEFILE"));
    let mut files = Vec::new();
    match named {
        Some(file) if !Path::new(&file).is_file() => {
            return Err(format!("there is no file of services {file:?}"));
        }
        Some(file) => files.push(PathBuf::from(file)),
        None => files.extend(home(var).map(|home| home.join(".pg_service.conf"))),
    }
    let system = match variable(var, "PGSYSCONFDIR") {
        Some(folder) => vec![PathBuf::from(folder)],
        None => SYSTEM_FOLDERS.map(PathBuf::from).to_vec(),
    };
    files.extend(system.iter().map(|folder| folder.join("pg_service.conf")));
    for file in files {
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(format!("the file {file:?} can't be read: {error}")),
        };
        let found = section(&text, service, builder);
        if let Some(found) = found.map_err(|why| format!("{file:?}: {why}"))? {
            return Ok(found);
        }
    }
    Err(format!("there is no service {service:?}"))
}

/// Returns the parameters in one section of a file of services.
fn section(
    text: &str,
    service: &str,
    builder: &str,
) -> Result<Option<Vec<(&'static str, String)>>, String> {
    let mut found: Option<Vec<(&'static str, String)>> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            if found.is_some() {
                break;
            }
            if name.strip_suffix(']') == Some(service) {
                found = Some(Vec::new());
            }
            continue;
        }
        let Some(values) = &mut found else { continue };
        let (name, value) = line
            .split_once('=')
            .ok_or_else(|| format!("line {number} is no parameter"))?;
        if name == "service" || name == "servicefile" {
            return Err(format!("line {number}: a service can't name another one"));
        }
        let name = known(name, builder).map_err(|why| format!("line {number}: {why}"))?;
        // As in `libpq`, the first one counts.
        if !values.iter().any(|(other, _)| *other == name) {
            values.push((name, value.to_owned()));
        }
    }
    Ok(found)
}

fn home(var: Var<'_>) -> Option<PathBuf> {
    variable(var, "HOME").map(PathBuf::from)
}

// === the configuration ===

fn from_values(values: &Values, var: Var<'_>) -> Result<Parameters, String> {
    // The protocol can't send a zero byte, and names of files have none.
    if let Some((name, _)) = values.iter().find(|(_, value)| value.contains('\0')) {
        return Err(format!("the value of {name:?} has a zero byte"));
    }
    let value = |name: &str| given(values, name);
    let mut config = Config::new();
    hosts(&mut config, values)?;
    let user = value("user");
    if let Some(user) = &user {
        config.user(user);
    }
    // As the driver and the server do.
    let user = user
        .or_else(|| variable(var, "USER"))
        .or_else(|| variable(var, "LOGNAME"))
        .unwrap_or_default();
    if let Some(dbname) = value("dbname") {
        config.dbname(dbname);
    }
    let database = config.get_dbname().unwrap_or(&user).to_owned();
    if let Some(options) = value("options") {
        config.options(options);
    }
    let name = value("application_name").or_else(|| value("fallback_application_name"));
    config.application_name(name.as_deref().unwrap_or("tourbillon"));
    limits(&mut config, values)?;
    attributes(&mut config, values)?;
    let encryption = encryption(&mut config, values)?;
    let password_file = match value("password") {
        Some(password) => {
            config.password(password);
            None
        }
        None => value("passfile")
            .map(PathBuf::from)
            .or_else(|| home(var).map(|home| home.join(".pgpass")))
            .map(|path| PasswordFile {
                path,
                database,
                user,
            }),
    };
    let root_certificate = value("sslrootcert").filter(|file| file != "system");
    if root_certificate.is_some() && !values.contains_key("sslmode") {
        return Err("`sslrootcert` needs `sslmode=verify-full` beside it".to_owned());
    }
    Ok(Parameters {
        config,
        encryption,
        root_certificate: root_certificate.map(PathBuf::from),
        password_file,
    })
}

fn hosts(config: &mut Config, values: &Values) -> Result<(), String> {
    let ports = given(values, "port").unwrap_or_default();
    let ports: Vec<u16> = match ports.is_empty() {
        true => Vec::new(),
        false => ports
            .split(',')
            .map(|port| match port {
                "" => Ok(5432),
                // The error does not show it: perhaps it is a part of a password.
                port => port.trim().parse().map_err(
                    |_| "\"port\" is no number up to 65535: write `%2F` for each `/` in a password",
                ),
            })
            .collect::<Result<_, &str>>()?,
    };
    for port in &ports {
        config.port(*port);
    }
    let local = || {
        let socket = format!(".s.PGSQL.{}", ports.first().unwrap_or(&5432));
        let has_socket = |folder: &&str| Path::new(folder).join(&socket).exists();
        let folder = SOCKET_FOLDERS.into_iter().find(|folder| has_socket(folder));
        folder.unwrap_or("localhost")
    };
    let addresses = given(values, "hostaddr");
    for address in addresses.iter().flat_map(|addresses| addresses.split(',')) {
        config.hostaddr(parsed("hostaddr", address)?);
    }
    match given(values, "host") {
        Some(hosts) => {
            for host in hosts.split(',') {
                config.host(match host {
                    "" => local(),
                    host => host,
                });
            }
        }
        None if addresses.is_none() => {
            config.host(local());
        }
        None => {}
    }
    Ok(())
}

fn parsed<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value
        .trim()
        .parse()
        .map_err(|_| format!("invalid value of {name:?}: {value:?}"))
}

fn limits(config: &mut Config, values: &Values) -> Result<(), String> {
    let number = |name: &str| -> Result<Option<u64>, String> {
        let value = given(values, name);
        let number = value.map(|value| parsed::<i64>(name, &value)).transpose()?;
        // In `libpq` zero and negative numbers mean no limit.
        Ok(number
            .and_then(|number| u64::try_from(number).ok())
            .filter(|number| *number > 0))
    };
    if let Some(seconds) = number("connect_timeout")? {
        config.connect_timeout(Duration::from_secs(seconds));
    }
    if let Some(millis) = number("tcp_user_timeout")? {
        config.tcp_user_timeout(Duration::from_millis(millis));
    }
    if given(values, "keepalives").is_some() {
        config.keepalives(number("keepalives")?.is_some());
    }
    if let Some(seconds) = number("keepalives_idle")? {
        config.keepalives_idle(Duration::from_secs(seconds));
    }
    if let Some(seconds) = number("keepalives_interval")? {
        config.keepalives_interval(Duration::from_secs(seconds));
    }
    if let Some(count) = number("keepalives_count")?.or(number("keepalives_retries")?) {
        config.keepalives_retries(u32::try_from(count).unwrap_or(u32::MAX));
    }
    Ok(())
}

fn attributes(config: &mut Config, values: &Values) -> Result<(), String> {
    let invalid = |name: &str, value: &str| Err(format!("invalid value of {name:?}: {value:?}"));
    let value = |name: &str| values.get(name).map(String::as_str);
    if let Some(value) = value("target_session_attrs") {
        config.target_session_attrs(match value {
            "any" => TargetSessionAttrs::Any,
            "read-write" | "primary" => TargetSessionAttrs::ReadWrite,
            // Only a primary accepts writes.
            other => return invalid("target_session_attrs", other),
        });
    }
    if let Some(value) = value("channel_binding") {
        config.channel_binding(match value {
            "disable" => ChannelBinding::Disable,
            "prefer" => ChannelBinding::Prefer,
            "require" => ChannelBinding::Require,
            other => return invalid("channel_binding", other),
        });
    }
    if let Some(value) = value("load_balance_hosts") {
        config.load_balance_hosts(match value {
            "disable" => LoadBalanceHosts::Disable,
            "random" => LoadBalanceHosts::Random,
            other => return invalid("load_balance_hosts", other),
        });
    }
    match value("gssencmode") {
        None | Some("" | "disable" | "allow" | "prefer") => {}
        Some(other) => return invalid("gssencmode", other),
    }
    // The crate sends and shows text in UTF-8 alone.
    let encoding = value("client_encoding").unwrap_or_default();
    match encoding
        .to_ascii_lowercase()
        .replace(['-', '_'], "")
        .as_str()
    {
        "" | "auto" | "utf8" | "unicode" => Ok(()),
        _ => Err(format!(
            "the encoding {encoding:?} of the client: it is always UTF-8 here"
        )),
    }
}

/// Sets the encryption of the driver, which does not know all modes of `libpq`.
fn encryption(config: &mut Config, values: &Values) -> Result<Encryption, String> {
    let encryption = match values.get("sslmode").map(String::as_str) {
        None | Some("disable" | "allow" | "prefer") => Encryption::None,
        Some("verify-ca") => Encryption::TrustedAuthority,
        Some("require" | "verify-full") => Encryption::TrustedHost,
        Some(other) => return Err(format!("invalid value of \"sslmode\": {other:?}")),
    };
    config.ssl_mode(match encryption {
        Encryption::None => SslMode::Disable,
        _ => SslMode::Require,
    });
    match values.get("sslnegotiation").map(String::as_str) {
        None | Some("" | "postgres") => {}
        Some("direct") => {
            config.ssl_negotiation(SslNegotiation::Direct);
        }
        Some(other) => return Err(format!("invalid value of \"sslnegotiation\": {other:?}")),
    }
    Ok(encryption)
}

#[cfg(test)]
mod tests;
