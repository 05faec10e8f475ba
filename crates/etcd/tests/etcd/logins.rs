//! Users, roles and certificates.

#[cfg(feature = "tls")]
use std::fs;
use std::thread;
use std::time::Duration;

use chaos::servers::etcd::Server;
use tourbillon_etcd::{EtcdBuildError, EtcdStore};
use tourbillon_leases::{Outcome, Released, Renewal, Secret};

use crate::calls::Calls;
use crate::common::{LEASE, LIMIT, acquire, base64, granted, patiently, refused, release, renew};

/// A server whose user `app` may use the keys of the default prefix alone.
fn server_with_users() -> Server {
    let server = Server::start();
    let end = base64(b"tourbillon0");
    let range = format!(r#""key":"{}","range_end":"{end}""#, base64(b"tourbillon/"));
    for (path, json) in [
        ("user/add", r#"{"name":"root","password":"r"}"#),
        ("user/add", r#"{"name":"app","password":"p@:/%"}"#),
        ("user/add", r#"{"name":"nobody","password":"n"}"#),
        ("role/add", r#"{"name":"root"}"#),
        ("role/add", r#"{"name":"app"}"#),
        (
            "role/grant",
            &*format!(r#"{{"name":"app","perm":{{"permType":"READWRITE",{range}}}}}"#),
        ),
        ("user/add", r#"{"name":"reader","password":"r"}"#),
        ("role/add", r#"{"name":"reader"}"#),
        (
            "role/grant",
            &*format!(r#"{{"name":"reader","perm":{{"permType":"READ",{range}}}}}"#),
        ),
        ("user/grant", r#"{"user":"root","role":"root"}"#),
        ("user/grant", r#"{"user":"app","role":"app"}"#),
        ("user/grant", r#"{"user":"reader","role":"reader"}"#),
        ("enable", "{}"),
    ] {
        let answer = server.post(&format!("/v3/auth/{path}"), json);
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    server
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn users_need_a_password_and_the_rights_to_the_prefix() {
    let mut server = server_with_users();
    let port = server.port();
    let open = |user: &str| EtcdStore::open(&format!("etcd://{user}127.0.0.1:{port}")).unwrap();
    let app = open("app:p%40%3A%2F%25@");
    granted(&app, "x", "a:1");
    assert_eq!(app.check(LIMIT), Ok(()));
    assert!(
        app.list("", &tourbillon_leases::LockPaging::first(9), LIMIT)
            .is_ok()
    );
    for (store, words) in [
        (open(""), "user name is empty"),
        (open("app:wrong@"), "authentication failed"),
        (open("other:p@"), "authentication failed"),
        (open("nobody:n@"), "needs to read and write"),
        (
            EtcdStore::builder(&server.url())
                .user("app", "p@:/%")
                .prefix("other/")
                .build()
                .unwrap(),
            "needs to read and write",
        ),
    ] {
        refused(&store.check(LIMIT), &[words]);
        let answer = acquire(&store, "x", "b:1");
        refused(&answer, &[words]);
        assert!(!format!("{answer:?}{store:?}").contains("p@:/%"));
    }
    // A user who may only read is granted nothing, since it could not release it.
    let reader = open("reader:r@");
    refused(&reader.check(LIMIT), &["needs to read and write"]);
    refused(&acquire(&reader, "y", "b:1"), &["needs to read and write"]);
    assert_eq!(app.holder_of("y", LIMIT), Ok(None));
    assert!(matches!(reader.holder_of("x", LIMIT), Ok(Some(_))));
    // The tokens of connections do not outlive the server: the store logs in again.
    server.restart();
    let mine = Renewal::new("x", Secret::new("a:1"), LEASE);
    let renewed = patiently(|| app.renew(Default::default(), &[mine], LIMIT));
    assert_eq!(renewed, Ok(vec![Outcome::Renewed]));
    // A change of the users makes tokens old.
    server.post("/v3/auth/authenticate", r#"{"name":"root","password":"r"}"#);
    assert_eq!(renew(&app, &[mine]), [Outcome::Renewed]);
    assert_eq!(release(&app, "x", "a:1"), Released::Released);
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_token_that_has_run_out_costs_no_call() {
    // Tokens end after a second without use.
    let server = Server::with(&["--auth-token-ttl", "1"]);
    for (path, json) in [
        ("user/add", r#"{"name":"root","password":"r"}"#),
        ("role/add", r#"{"name":"root"}"#),
        ("user/grant", r#"{"user":"root","role":"root"}"#),
    ] {
        server.post(&format!("/v3/auth/{path}"), json);
    }
    // A server without users lets everybody do everything, until it asks for them.
    let store = EtcdStore::builder(&server.url())
        .user("root", "r")
        .build()
        .unwrap();
    granted(&store, "x", "a:1");
    server.post("/v3/auth/enable", "{}");
    assert!(matches!(store.holder_of("x", LIMIT), Ok(Some(_))));
    // Whoever asks whether it has ended keeps it alive.
    thread::sleep(Duration::from_millis(2_500));
    let mine = Renewal::new("x", Secret::new("a:1"), LEASE);
    assert_eq!(renew(&store, &[mine]), [Outcome::Renewed]);
    assert_eq!(release(&store, "x", "a:1"), Released::Released);
}

#[test]
fn what_is_wrong_with_the_options_is_said_by_the_builder() {
    let build = |url: &str| EtcdStore::builder(url);
    for prefix in [String::new(), "p".repeat(257)] {
        let bytes = prefix.len();
        let error = build("etcd://a").prefix(prefix).build().unwrap_err();
        assert_eq!(error, EtcdBuildError::Prefix { bytes });
    }
    let error = build("etcd://a b").user("a", "b").build().unwrap_err();
    assert!(matches!(error, EtcdBuildError::Url(_)), "{error}");
    assert!(build("etcd://a").prefix("p".repeat(256)).build().is_ok());
    #[cfg(not(feature = "tls"))]
    assert!(matches!(
        build("etcds://a").build(),
        Err(EtcdBuildError::Tls(_))
    ));
    #[cfg(feature = "tls")]
    {
        let error = build("etcd://a").ca_certificate("x").build().unwrap_err();
        assert!(matches!(error, EtcdBuildError::Tls(_)), "{error}");
    }
}

#[cfg(feature = "tls")]
#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn servers_with_certificates_are_checked_and_check_their_clients() {
    let authority = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::new(vec![]).unwrap();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let signed = parameters.self_signed(&authority).unwrap();
    let issuer = rcgen::Issuer::new(parameters, authority);
    let folder = std::env::temp_dir().join(format!("tourbillon-etcd-tls-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    fs::write(path("ca.pem"), signed.pem()).unwrap();
    let made = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let parameters = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &issuer).unwrap();
        fs::write(path(&format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(path(&format!("{name}.key")), key.serialize_pem()).unwrap();
        (certificate.pem(), key.serialize_pem())
    };
    made("server");
    let (certificate, key) = made("client");
    let server = Server::with(&[
        "--cert-file",
        &path("server.pem"),
        "--key-file",
        &path("server.key"),
        "--trusted-ca-file",
        &path("ca.pem"),
        "--client-cert-auth",
    ]);
    let builder = || EtcdStore::builder(&format!("etcds://127.0.0.1:{}", server.port()));
    let store = builder()
        .ca_certificate(signed.pem())
        .client_certificate(certificate.clone(), key.clone())
        .build()
        .unwrap();
    granted(&store, "x", "a:1");
    assert_eq!(release(&store, "x", "a:1"), Released::Released);
    // An authority that the system does not know, no certificate of the client, and no TLS.
    let unknown = builder()
        .client_certificate(certificate, key)
        .build()
        .unwrap();
    let nobody = builder().ca_certificate(signed.pem()).build().unwrap();
    let plain = EtcdStore::open(&server.url()).unwrap();
    for store in [unknown, nobody, plain] {
        let checked = store.check(LIMIT);
        assert!(checked.is_err(), "{store:?}");
    }
    fs::remove_dir_all(&folder).unwrap();
}
