//! The options of connections.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::caller::Caller;
use crate::connector::Connector;
use crate::error::PostgresError;
use crate::hosts::Hosts;
use crate::parameters::{self, Parameters};
use crate::passfile::PasswordFile;
use crate::password::{AskPassword, Passwords};
use crate::security::{self, Encryption, Security};
#[cfg(feature = "tls")]
use crate::tls::{self, Certificates};

/// The options of a [`Connector`]: those of the URL, a function for passwords that change, and
/// certificates.
///
/// # Examples
///
/// ```no_run
/// use tourbillon_postgres::{Caller, Connector};
///
/// # const CALLER: Caller = Caller { package: "p", builder: "B", threads: "t" };
/// let connector = Connector::builder("postgres://app@db.example.com/shop", CALLER)?
///     .password_with(|| Ok(std::fs::read_to_string("/run/secrets/token")?.trim_end().to_owned()))
///     .build()?;
/// # Ok::<(), tourbillon_postgres::PostgresError>(())
/// ```
pub struct ConnectorBuilder {
    caller: Caller,
    config: Config,
    encryption: Encryption,
    #[cfg(feature = "tls")]
    certificates: Certificates,
    password_file: Option<PasswordFile>,
    ask_password: Option<AskPassword>,
}

impl Connector {
    /// Returns the options for the database of a URL, or of a string of `key=value` pairs, as
    /// `psql` takes them. A missing parameter is taken from the service, or else from the
    /// environment.
    ///
    /// # Errors
    ///
    /// [`PostgresError::Refused`] if the URL or a file that it names can't be read, if a parameter
    /// is not supported, or if the URL asks for TLS without the feature `tls`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_postgres::{Caller, Connector};
    ///
    /// # const CALLER: Caller = Caller { package: "p", builder: "B", threads: "t" };
    /// let refused = Connector::builder("host=db require_auth=md5", CALLER).err();
    /// assert!(refused.is_some_and(|why| why.to_string().contains("require_auth")));
    /// ```
    pub fn builder(url: &str, caller: Caller) -> Result<ConnectorBuilder, PostgresError> {
        ConnectorBuilder::new(url, caller)
    }
}

impl ConnectorBuilder {
    fn new(url: &str, caller: Caller) -> Result<Self, PostgresError> {
        let var = |name: &str| std::env::var(name).ok();
        let Parameters {
            mut config,
            encryption,
            root_certificate,
            password_file,
        } = parameters::read(url, &var, caller.builder).map_err(|why| {
            PostgresError::Refused(format!("the URL of the database can't be read: {why}"))
        })?;
        security::check(encryption, cfg!(feature = "tls"), caller)?;
        #[cfg(feature = "tls")]
        let mut certificates = Certificates::default();
        #[cfg(feature = "tls")]
        if let Some(file) = root_certificate.filter(|_| encryption != Encryption::None) {
            let pem = std::fs::read(&file).map_err(|error| {
                PostgresError::Refused(format!("`sslrootcert`: {file:?} can't be read: {error}"))
            })?;
            certificates.trust(pem);
        }
        #[cfg(not(feature = "tls"))]
        drop(root_certificate);
        // So that a server that is gone is found within seconds, also if no call waits for an
        // answer.
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(10));
        }
        // A router forgets idle connections within minutes, and the driver's own default is two
        // hours.
        config.keepalives_idle(config.get_keepalives_idle().min(Duration::from_secs(60)));
        Ok(ConnectorBuilder {
            caller,
            config,
            encryption,
            #[cfg(feature = "tls")]
            certificates,
            password_file,
            ask_password: None,
        })
    }

    /// Sets a function that returns the password of each new connection, in place of the one in the
    /// URL. The function is called on a thread that may block. It should have a time limit, since
    /// no connection is opened until it returns. If it fails or panics, the attempt to connect
    /// fails with [`PostgresError::Unavailable`].
    #[must_use]
    pub fn password_with(
        mut self,
        ask: impl Fn() -> Result<String, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        self.ask_password = Some(AskPassword::new(ask));
        self
    }

    /// Adds one or more certificates of trusted authorities in PEM, for a URL that asks for TLS.
    /// Without this call, and without a file in `sslrootcert`, the authorities of the system are
    /// trusted. Feature `tls`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tourbillon_postgres::{Caller, Connector};
    ///
    /// # const CALLER: Caller = Caller { package: "p", builder: "B", threads: "t" };
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let connector = Connector::builder("postgres://app@db/shop?sslmode=verify-full", CALLER)?
    ///     .tls_root_certificate_pem(std::fs::read("/etc/postgresql/ca.crt")?)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    #[must_use]
    pub fn tls_root_certificate_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.trust(pem.into());
        self
    }

    /// Sets the certificate of this client with the chain up to an authority that the server
    /// trusts, and its private key, both in PEM. Feature `tls`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::fs::read;
    /// use tourbillon_postgres::{Caller, Connector};
    ///
    /// # const CALLER: Caller = Caller { package: "p", builder: "B", threads: "t" };
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let connector = Connector::builder("postgres://app@db/shop?sslmode=verify-full", CALLER)?
    ///     .tls_client_certificate_pem(read("/etc/shop/client.crt")?, read("/etc/shop/client.key")?)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    #[must_use]
    pub fn tls_client_certificate_pem(
        mut self,
        chain: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.show(chain.into(), key.into());
        self
    }

    /// Returns the hosts, in the order of the URL.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        self.config.get_hosts()
    }

    /// Returns the encryption that the URL asks for.
    #[must_use]
    pub fn encryption(&self) -> Encryption {
        self.encryption
    }

    /// Checks the options. It connects to no server.
    ///
    /// # Errors
    ///
    /// [`PostgresError::Refused`] if the options don't fit together, if a certificate can't be
    /// used, or if TLS is asked for and no certificate can be for one of the hosts.
    pub fn build(self) -> Result<Connector, PostgresError> {
        let security = self.security()?;
        let passwords = match (self.ask_password, self.password_file) {
            (Some(ask), _) => Passwords::Asked(ask),
            (None, Some(file)) => Passwords::InFile(file),
            (None, None) => Passwords::OfUrl,
        };
        let hosts = Hosts::new(&self.config, security, passwords)?;
        Ok(Connector::new(hosts, self.caller))
    }

    #[cfg(not(feature = "tls"))]
    #[allow(
        clippy::unused_self,
        clippy::unnecessary_wraps,
        reason = "with TLS it can fail"
    )]
    fn security(&self) -> Result<Security, PostgresError> {
        Ok(Security::none())
    }

    #[cfg(feature = "tls")]
    fn security(&self) -> Result<Security, PostgresError> {
        if self.encryption == Encryption::None {
            return match self.certificates.is_empty() {
                true => Ok(Security::none()),
                false => Err(PostgresError::Refused(
                    "there are certificates, and the URL does not ask for TLS: add \
                     `sslmode=verify-full`"
                        .to_owned(),
                )),
            };
        }
        for host in self.config.get_hosts() {
            if let Host::Tcp(name) = host {
                tls::check_name(name).map_err(PostgresError::Refused)?;
            }
        }
        let tls = self.certificates.tls(self.encryption);
        tls.map(Security::tls).map_err(PostgresError::Refused)
    }
}

impl fmt::Debug for ConnectorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the configuration's password.
        f.debug_struct("ConnectorBuilder")
            .field("hosts", &self.config.get_hosts())
            .field("encryption", &self.encryption)
            .finish_non_exhaustive()
    }
}
