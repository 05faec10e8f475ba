//! TLS by rustls, with the cryptography of `ring`.
//!
//! The provider is chosen here. The default one of rustls would depend on the other crates of the
//! program.

use std::fmt;
use std::io;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, ClientConfig, Error, InvalidMessage, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::sync::Arc;

/// The certificates that a store trusts, and the one that it shows.
#[derive(Clone, Default)]
pub(super) struct Certificates {
    /// Trusted certificates in PEM. If there are none, the certificates of the system are trusted.
    roots: Vec<Vec<u8>>,
    /// The chain of the client's certificates, and the private key of the first one.
    own: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    pub(super) fn trust(&mut self, pem: Vec<u8>) {
        self.roots.push(pem);
    }

    pub(super) fn show(&mut self, chain: Vec<u8>, key: Vec<u8>) {
        self.own = Some((chain, key));
    }

    /// Checks that all of them can be read, without connecting.
    pub(super) fn check(&self) -> Result<(), String> {
        for pem in &self.roots {
            roots(std::slice::from_ref(pem))?;
        }
        self.own().map(drop)
    }

    /// Reads the client's certificate and key.
    fn own(
        &self,
    ) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, String> {
        let Some((chain, key)) = &self.own else {
            return Ok(None);
        };
        let chain = certificates(chain, "the client's certificate")?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| format!("the client's private key is no key in PEM: {error}"))?;
        Ok(Some((chain, key)))
    }

    /// Returns the TLS settings for servers of these names.
    pub(super) fn tls(&self, hosts: &[&str]) -> Result<Tls, String> {
        for host in hosts {
            name(host)?;
        }
        let roots = if self.roots.is_empty() {
            system_roots()?
        } else {
            roots(&self.roots)?
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let config = match self.own()? {
            None => config.with_no_client_auth(),
            Some((chain, key)) => config
                .with_client_auth_cert(chain, key)
                .map_err(|error| format!("the client's certificate and key: {error}"))?,
        };
        Ok(Tls(TlsConnector::from(Arc::new(config))))
    }
}

/// Returns the name that the certificate of a host must have.
fn name(host: &str) -> Result<ServerName<'static>, String> {
    let name = ServerName::try_from(host.to_owned());
    name.map_err(|_| format!("{host:?} is no name that a certificate can be for"))
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates")
            .field("roots", &self.roots.len())
            .field("own", &self.own.is_some())
            .finish()
    }
}

/// Reads certificates. `what` names them in the error.
fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!("{what} is no certificate in PEM")),
        Err(error) => Err(format!("{what} is no certificate in PEM: {error}")),
    }
}

fn roots(texts: &[Vec<u8>]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for pem in texts {
        for certificate in certificates(pem, "a root certificate")? {
            let added = roots.add(certificate);
            added.map_err(|error| format!("a root certificate can't be used: {error}"))?;
        }
    }
    Ok(roots)
}

/// Returns the certificates that the system trusts.
fn system_roots() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Some systems have a few malformed certificates, so these are skipped.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found.errors.first().map(ToString::to_string);
        return Err(format!(
            "this system has no root certificates ({}); name one with `tls_root_certificate_pem`",
            why.as_deref().unwrap_or("none were found")
        ));
    }
    Ok(roots)
}

/// The TLS settings of a store.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl Tls {
    /// Does the handshake.
    pub(super) async fn over(
        &self,
        stream: TcpStream,
        host: &str,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = name(host).map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

/// Returns the reason of an error that will be repeated, or `None` for an error that may pass.
pub(super) fn refusal(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    use AlertDescription as Alert;
    let what = match error {
        Error::InvalidCertificate(_) => "the server's certificate is not accepted",
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the server does not speak TLS on this port"
        }
        Error::PeerIncompatible(_) => "client and server have no way of TLS in common",
        Error::AlertReceived(
            Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::AccessDenied,
        ) => "the server does not accept the client's certificate",
        Error::AlertReceived(
            Alert::HandshakeFailure
            | Alert::ProtocolVersion
            | Alert::InsufficientSecurity
            | Alert::UnrecognisedName,
        ) => "the server refuses the handshake",
        _ => return None,
    };
    Some(format!("{what}: {error}"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustls::{CertificateError, PeerIncompatible};

    fn refused(error: Error) -> Option<String> {
        refusal(&io::Error::new(io::ErrorKind::InvalidData, error))
    }

    #[test]
    fn what_will_be_so_again_is_told_from_what_passes() {
        for (error, words) in [
            (
                Error::InvalidCertificate(CertificateError::Expired),
                "the server's certificate is not accepted: invalid peer certificate",
            ),
            (
                Error::InvalidMessage(InvalidMessage::InvalidContentType),
                "the server does not speak TLS on this port",
            ),
            (
                Error::PeerIncompatible(
                    PeerIncompatible::ServerSentHelloRetryRequestWithUnknownExtension,
                ),
                "no way of TLS in common",
            ),
            (
                Error::AlertReceived(AlertDescription::CertificateRequired),
                "does not accept the client's certificate",
            ),
            (
                Error::AlertReceived(AlertDescription::ProtocolVersion),
                "refuses the handshake",
            ),
        ] {
            let refusal = refused(error).unwrap();
            assert!(refusal.contains(words), "{refusal}");
        }
        assert_eq!(refused(Error::DecryptError), None);
        let alert = AlertDescription::InternalError;
        assert_eq!(refused(Error::AlertReceived(alert)), None);
        assert_eq!(refusal(&io::ErrorKind::UnexpectedEof.into()), None);
    }

    #[test]
    fn what_is_no_certificate_is_named() {
        let mut certificates = Certificates::default();
        assert_eq!(certificates.check(), Ok(()));
        certificates.show(b"nonsense".to_vec(), b"nonsense".to_vec());
        let what = "the client's certificate is no certificate in PEM";
        assert_eq!(certificates.check(), Err(what.to_owned()));
        certificates.trust(b"nonsense".to_vec());
        let what = "a root certificate is no certificate in PEM";
        assert_eq!(certificates.check(), Err(what.to_owned()));
        let Err(what) = Certificates::default().tls(&["no name at all"]) else {
            panic!("a name with spaces is accepted");
        };
        assert!(
            what.contains("no name that a certificate can be for"),
            "{what}"
        );
    }
}
