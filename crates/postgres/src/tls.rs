//! TLS by rustls, with the cryptography of `ring`.
//!
//! The provider of the cryptography is chosen here, since the default provider of rustls depends on
//! the other crates of the program.

use std::fmt;
use std::io;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::security::Encryption;
use crate::sync::Arc;

/// The certificates that a client trusts, and the certificate that it shows.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    /// Trusted certificates in PEM. If there are none, the certificates of the system are trusted.
    roots: Vec<Vec<u8>>,
    /// The chain of the client's certificates, and the private key of the first one.
    own: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    pub(crate) fn trust(&mut self, pem: Vec<u8>) {
        self.roots.push(pem);
    }

    pub(crate) fn show(&mut self, chain: Vec<u8>, key: Vec<u8>) {
        self.own = Some((chain, key));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.roots.is_empty() && self.own.is_none()
    }

    /// Returns the settings for connections with this encryption.
    pub(crate) fn tls(&self, encryption: Encryption) -> Result<MakeRustlsConnect, String> {
        let roots = match self.roots.is_empty() {
            true => system_roots()?,
            false => roots(&self.roots)?,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .map_err(|error| error.to_string())?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let config = match encryption {
            Encryption::TrustedAuthority => config
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyName(verifier))),
            Encryption::TrustedHost | Encryption::None => config.with_webpki_verifier(verifier),
        };
        let mut config = match &self.own {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates(chain, "the client's certificate")?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
                    format!("the client's private key is no key in PEM: {error}")
                })?;
                config
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| format!("the client's certificate and key: {error}"))?
            }
        };
        // PostgreSQL 17 requires this if TLS begins at once (`sslnegotiation=direct`).
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(MakeRustlsConnect::new(config))
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates")
            .field("roots", &self.roots.len())
            .field("own", &self.own.is_some())
            .finish()
    }
}

/// Checks that a certificate can be for this name.
pub(crate) fn check_name(host: &str) -> Result<(), String> {
    match ServerName::try_from(host) {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("{host:?} is no name that a certificate can be for")),
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

/// Accepts a certificate of a trusted authority for any name, as `verify-ca` demands. Everything
/// else is checked, in particular that the server has the key.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.0
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is compared last, when all other checks have succeeded.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Returns the reason of an error that would be repeated. Returns `None` for an error that may
/// pass, or that is not about TLS.
pub(crate) fn refusal(error: &tokio_postgres::Error) -> Option<String> {
    let mut next = std::error::Error::source(error);
    while let Some(error) = next {
        // The driver has no type for this error.
        if error.to_string() == "server does not support TLS" {
            return Some("the URL asks for TLS, and the server has none".to_owned());
        }
        if let Some(tls) = tls_error(error) {
            return reason(tls).map(|what| format!("{what}: {tls}"));
        }
        next = error.source();
    }
    None
}

fn tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Error> {
    if let Some(error) = error.downcast_ref::<Error>() {
        return Some(error);
    }
    let error = error.downcast_ref::<io::Error>()?;
    error.get_ref()?.downcast_ref::<Error>()
}

fn reason(error: &Error) -> Option<&'static str> {
    use AlertDescription as Alert;
    match error {
        Error::InvalidCertificate(_) => Some("the server's certificate is not accepted"),
        Error::PeerIncompatible(_) => Some("client and server have no way of TLS in common"),
        Error::AlertReceived(
            Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::AccessDenied
            // The alert of OpenSSL for a forged certificate with the name of a trusted authority.
            | Alert::DecryptError,
        ) => Some("the server does not accept the client's certificate"),
        Error::AlertReceived(
            Alert::HandshakeFailure
            | Alert::ProtocolVersion
            | Alert::InsufficientSecurity
            | Alert::UnrecognisedName,
        ) => Some("the server refuses the handshake"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::PeerIncompatible;

    #[test]
    fn what_will_be_so_again_is_told_from_what_passes() {
        let refused = [
            Error::InvalidCertificate(CertificateError::Expired),
            Error::PeerIncompatible(
                PeerIncompatible::ServerSentHelloRetryRequestWithUnknownExtension,
            ),
            Error::AlertReceived(AlertDescription::CertificateRequired),
            Error::AlertReceived(AlertDescription::ProtocolVersion),
        ];
        for error in refused {
            assert!(reason(&error).is_some(), "{error}");
            // As the driver has it.
            let error = io::Error::new(io::ErrorKind::InvalidData, error);
            assert!(tls_error(&error).is_some(), "{error}");
        }
        assert_eq!(reason(&Error::DecryptError), None);
        let alert = AlertDescription::InternalError;
        assert_eq!(reason(&Error::AlertReceived(alert)), None);
        assert!(tls_error(&io::Error::from(io::ErrorKind::UnexpectedEof)).is_none());
    }

    #[test]
    fn what_is_no_certificate_is_named() {
        let tls = |certificates: &Certificates| certificates.tls(Encryption::TrustedHost).err();
        let mut certificates = Certificates::default();
        assert!(certificates.is_empty());
        certificates.trust(b"nonsense".to_vec());
        assert!(!certificates.is_empty());
        let what = "a root certificate is no certificate in PEM";
        assert_eq!(tls(&certificates).as_deref(), Some(what));
        assert!(check_name("db.example.com").is_ok());
        assert!(check_name("127.0.0.1").is_ok());
        let what = "\"no name at all\" is no name that a certificate can be for";
        assert_eq!(check_name("no name at all"), Err(what.to_owned()));
    }
}
