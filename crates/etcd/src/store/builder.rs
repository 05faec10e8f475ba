//! The builder of a store.

use std::fmt;
use std::time::Duration;

use tonic::transport::Endpoint;

use super::EtcdStore;
use crate::address::Address;
use crate::build_error::EtcdBuildError;
use crate::links::{Links, Server};

/// The first part of each key.
const PREFIX: &str = "tourbillon/";
const LONGEST_PREFIX: usize = 256;

/// A connection whose other end does not answer for so long is dead. The server allows a ping every five seconds.
const PING: Duration = Duration::from_secs(10);
const PONG: Duration = Duration::from_secs(5);

/// Builds an [`EtcdStore`].
///
/// # Examples
///
/// ```
/// use tourbillon_etcd::EtcdStore;
///
/// let store = EtcdStore::builder("etcd://a.example.com,b.example.com,c.example.com")
///     .prefix("shop/locks/")
///     .user("shop", "the password")
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct EtcdStoreBuilder {
    address: Result<Address, EtcdBuildError>,
    prefix: String,
    #[cfg(feature = "tls")]
    certificates: Certificates,
}

#[cfg(feature = "tls")]
#[derive(Default)]
struct Certificates {
    authority: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

impl EtcdStoreBuilder {
    pub(super) fn new(url: &str) -> Self {
        EtcdStoreBuilder {
            address: Address::read(url),
            prefix: PREFIX.to_owned(),
            #[cfg(feature = "tls")]
            certificates: Certificates::default(),
        }
    }

    /// Sets the first part of all keys; `tourbillon/` by default. It has 1 to 256 bytes. All programs that
    /// share locks need the same prefix.
    ///
    /// Nothing else should use keys with this prefix. One that ends with a character that no name begins with,
    /// such as a slash, keeps the names of two stores apart.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the user and the password, in the place of those in the URL. The role of the user needs to read and
    /// write all keys with the [prefix](Self::prefix).
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        if let Ok(address) = &mut self.address {
            address.user = Some((name.into(), password.into()));
        }
        self
    }

    /// Builds the store, which connects when it is used first.
    ///
    /// # Errors
    ///
    /// If the URL can't be read, the prefix is empty or too long, or TLS can't be used as it is set.
    pub fn build(self) -> Result<EtcdStore, EtcdBuildError> {
        let address = self.address.as_ref().map_err(Clone::clone)?;
        let bytes = self.prefix.len();
        if !(1..=LONGEST_PREFIX).contains(&bytes) {
            return Err(EtcdBuildError::Prefix { bytes });
        }
        let mut servers = Vec::new();
        for name in &address.servers {
            let endpoint = self.endpoint(address.is_tls, name)?;
            let name = name.clone();
            servers.push(Server { name, endpoint });
        }
        let links = Links::new(servers, address.user.clone());
        Ok(EtcdStore::new(links, &self.prefix))
    }

    fn endpoint(&self, is_tls: bool, server: &str) -> Result<Endpoint, EtcdBuildError> {
        let scheme = if is_tls { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{server}"))
            .map_err(|_| EtcdBuildError::Url(format!("{server:?} is no host")))?;
        let endpoint = endpoint
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PONG);
        self.with_tls(is_tls, endpoint)
    }

    #[cfg(not(feature = "tls"))]
    fn with_tls(&self, is_tls: bool, endpoint: Endpoint) -> Result<Endpoint, EtcdBuildError> {
        match is_tls {
            false => Ok(endpoint),
            true => Err(EtcdBuildError::Tls(
                "the URL begins with etcds://, which needs the feature `tls` of tourbillon-etcd"
                    .to_owned(),
            )),
        }
    }

    #[cfg(feature = "tls")]
    fn with_tls(&self, is_tls: bool, endpoint: Endpoint) -> Result<Endpoint, EtcdBuildError> {
        use tonic::transport::{Certificate, ClientTlsConfig, Identity};

        let Certificates { authority, client } = &self.certificates;
        if !is_tls {
            return match (authority, client) {
                (None, None) => Ok(endpoint),
                _ => Err(EtcdBuildError::Tls(
                    "certificates are set, and the URL begins with etcd:// in the place of etcds://".to_owned(),
                )),
            };
        }
        let config = ClientTlsConfig::new();
        let config = match authority {
            Some(pem) => config.ca_certificate(Certificate::from_pem(pem)),
            None => config.with_native_roots(),
        };
        let config = match client {
            Some((certificate, key)) => config.identity(Identity::from_pem(certificate, key)),
            None => config,
        };
        let described = |error| EtcdBuildError::Tls(crate::failure::described(&error));
        endpoint.tls_config(config).map_err(described)
    }
}

/// What URLs that begin with `etcds://` may need. Feature `tls`.
///
/// # Examples
///
/// ```no_run
/// use std::fs::read;
/// use tourbillon_etcd::EtcdStore;
///
/// let store = EtcdStore::builder("etcds://etcd.example.com")
///     .ca_certificate(read("ca.pem")?)
///     .client_certificate(read("client.pem")?, read("client.key")?)
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
impl EtcdStoreBuilder {
    /// Sets the certificate of the authority that has signed those of the servers, as PEM. By default the
    /// authorities are those that the system trusts.
    pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.authority = Some(pem.into());
        self
    }

    /// Sets the certificate of this program and its key, as PEM, for servers that ask for one.
    pub fn client_certificate(
        mut self,
        certificate_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.client = Some((certificate_pem.into(), key_pem.into()));
        self
    }
}

impl fmt::Debug for EtcdStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStoreBuilder")
            .field("address", &self.address)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
