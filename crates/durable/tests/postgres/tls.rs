//! Connections over TLS, with authorities and certificates of the tests' own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tourbillon_durable::store::{Connection, Epoch, Store, StoreError};
use tourbillon_durable::{Postgres, PostgresBuilder};

use crate::cluster::{self, Cluster, Database};
use crate::hosts::silent;

/// The name in the server's certificate. Connections go to 127.0.0.1.
const NAME: &str = "db.test";

/// An authority, and what it has issued.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A name of its own: what it issues would seem to be its own work otherwise.
        let name = "an authority of tests";
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Authority {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// A certificate for a host, and its key, both in PEM.
    fn issue(&self, host: &str, is_expired: bool) -> (String, String) {
        let mut params = CertificateParams::new([host.to_owned()]).expect("a host");
        if is_expired {
            params.not_before = date_time_ymd(2_001, 1, 1);
            params.not_after = date_time_ymd(2_002, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}

/// A server with a certificate for [`NAME`].
struct Secured {
    authority: Authority,
    database: Database,
    // Dropped after what uses it.
    _cluster: Cluster,
    folder: Folder,
}

/// Files that the server reads.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tourbillon-{name}-{}", process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file");
        let for_its_owner = fs::Permissions::from_mode(0o600);
        fs::set_permissions(&path, for_its_owner).expect("it is ours");
        cluster::give(&self.0);
    }

    fn setting(&self, name: &str, file: &str) -> String {
        format!("{name}={}", self.0.join(file).display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Secured {
    fn start(name: &str) -> Self {
        let authority = Authority::new();
        let folder = Folder::new(name);
        let (certificate, key) = authority.issue(NAME, false);
        folder.write("ca.crt", &authority.pem);
        folder.write("own.crt", &certificate);
        folder.write("own.key", &key);
        let rules = "hostssl all certified all trust clientcert=verify-ca\n\
                     hostnossl all certified all reject\n\
                     host all bound all scram-sha-256\n\
                     host all all all trust\n";
        folder.write("hba.conf", rules);
        let cluster = Cluster::with(&[
            "fsync=off",
            "ssl=on",
            &folder.setting("ssl_ca_file", "ca.crt"),
            &folder.setting("ssl_cert_file", "own.crt"),
            &folder.setting("ssl_key_file", "own.key"),
            &folder.setting("hba_file", "hba.conf"),
        ]);
        Secured {
            authority,
            database: cluster.database(),
            _cluster: cluster,
            folder,
        }
    }

    fn url(&self, host: &str, more: &str) -> String {
        let (port, database) = (self.database.port(), self.database.name());
        format!("host={host} hostaddr=127.0.0.1 port={port} dbname={database} user=postgres {more}")
    }

    /// A store that trusts the authority of the server.
    fn trusting(&self, host: &str, more: &str) -> PostgresBuilder {
        let builder = Postgres::builder(&self.url(host, more)).expect("a URL");
        builder.tls_root_certificate_pem(self.authority.pem.as_bytes())
    }
}

/// Connects, and says whether the server sees TLS.
fn is_encrypted(store: Result<Postgres, StoreError>, database: &Database) -> bool {
    let store = store.expect("the server is trusted");
    let mut connection = store.connect().expect("the server is trusted");
    connection.beat(Epoch(1)).expect("it answers");
    let seen = "select bool_and(s.ssl) from pg_stat_ssl s join pg_stat_activity using (pid) \
                where application_name = 'tourbillon' and datname = current_database()";
    let seen = database.psql(seen).expect("it reads");
    drop::<Box<dyn Connection>>(connection);
    seen == "t"
}

fn refused(store: Result<Postgres, StoreError>, words: &[&str]) {
    let error = store.expect_err("it is refused");
    let text = error.to_string();
    assert!(matches!(error, StoreError::Refused(_)), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} in {text}");
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn each_mode_checks_what_the_documentation_says() {
    let secured = Secured::start("modes");
    let database = &secured.database;
    for mode in ["require", "verify-full", "verify-ca"] {
        let store = secured.trusting(NAME, &format!("sslmode={mode}"));
        assert!(is_encrypted(store.connect(), database), "{mode}");
    }
    for mode in ["require", "verify-full"] {
        let store = secured.trusting("other.test", &format!("sslmode={mode}"));
        let words = [
            "certificate is not accepted",
            "not valid for name",
            "other.test",
        ];
        refused(store.connect(), &words);
    }
    let any_name = secured.trusting("other.test", "sslmode=verify-ca");
    assert!(is_encrypted(any_name.connect(), database));
    let stranger = Authority::new();
    for mode in ["require", "verify-full", "verify-ca"] {
        let store = Postgres::builder(&secured.url(NAME, &format!("sslmode={mode}")));
        let store = store.map(|store| store.tls_root_certificate_pem(stranger.pem.as_bytes()));
        let words = ["certificate is not accepted"];
        refused(store.and_then(PostgresBuilder::connect), &words);
    }
    for mode in ["", "sslmode=disable", "sslmode=prefer"] {
        let store = Postgres::connect(&secured.url(NAME, mode));
        assert!(!is_encrypted(store, database), "{mode}");
    }
    let expired = secured.authority.issue(NAME, true);
    secured.folder.write("own.crt", &expired.0);
    secured.folder.write("own.key", &expired.1);
    let reloaded = database.psql("select pg_reload_conf()");
    assert_eq!(reloaded.as_deref(), Ok("t"));
    for mode in ["verify-full", "verify-ca"] {
        kit::wait::until("the server has its new certificate", || {
            let store = secured.trusting(NAME, &format!("sslmode={mode}"));
            match store.connect() {
                Ok(_) => false,
                error => {
                    refused(error.map(|_: Postgres| unreachable!()), &["expired"]);
                    true
                }
            }
        });
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_client_shows_its_certificate_and_binds_its_password_to_the_connection() {
    let secured = Secured::start("clients");
    let database = &secured.database;
    let roles = "create role certified superuser login; \
                 create role bound superuser login password 'secret'";
    database.psql(roles).expect("it may");
    let certified = || secured.trusting(NAME, "user=certified sslmode=verify-full");
    let error = certified().connect().expect_err("it has no certificate");
    assert!(error.to_string().contains("certificate"), "{error}");
    let (chain, key) = secured.authority.issue("a client", false);
    let store = certified().tls_client_certificate_pem(chain.as_bytes(), key.as_bytes());
    assert!(is_encrypted(store.connect(), database));
    // The server does not know this authority, which has the name of the one that it knows.
    let (chain, key) = Authority::new().issue("a client", false);
    let store = certified().tls_client_certificate_pem(chain, key);
    refused(
        store.connect(),
        &["does not accept the client's certificate"],
    );
    let (chain, _) = secured.authority.issue("a client", false);
    let store = certified().tls_client_certificate_pem(chain.as_bytes(), "nonsense");
    refused(store.connect(), &["private key"]);
    let store = certified().tls_client_certificate_pem("nonsense", "nonsense");
    refused(
        store.connect(),
        &["the client's certificate is no certificate"],
    );
    let bound = "user=bound password=secret channel_binding=require sslmode=verify-full";
    assert!(is_encrypted(
        secured.trusting(NAME, bound).connect(),
        database
    ));
}

/// The URL for the process of the following test.
const URL: &str = "TLS_TEST_URL";

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_authorities_of_the_system_are_trusted_if_the_program_names_none() {
    // A variable of the environment says which ones these are, so it takes a process of its own:
    // this test again.
    if let Ok(url) = std::env::var(URL) {
        Postgres::connect(&url).expect("the server is trusted");
        return;
    }
    let secured = Secured::start("system");
    secured.folder.write("stranger.crt", &Authority::new().pem);
    secured.folder.write("none.crt", "");
    let connect = |authorities: &str| {
        let mut again = process::Command::new(std::env::current_exe().expect("a test has a path"));
        let name = "tls::the_authorities_of_the_system_are_trusted_if_the_program_names_none";
        again
            .args(["--exact", name, "--nocapture"])
            .env(URL, secured.url(NAME, "sslmode=verify-full"))
            .env("SSL_CERT_FILE", secured.folder.0.join(authorities))
            .env_remove("SSL_CERT_DIR");
        let output = again.output().expect("a test can run itself");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    let (is_trusted, said) = connect("ca.crt");
    assert!(is_trusted, "{said}");
    for (authorities, why) in [
        ("stranger.crt", "the server's certificate is not accepted"),
        ("none.crt", "this system has no root certificates"),
    ] {
        let (is_trusted, said) = connect(authorities);
        assert!(!is_trusted && said.contains(why), "{said}");
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_server_without_tls_and_one_that_never_answers_are_told() {
    let database = cluster::lent();
    let authority = Authority::new();
    let trusting = |url: &str| {
        let builder = Postgres::builder(url).expect("a URL");
        builder.tls_root_certificate_pem(authority.pem.as_bytes())
    };
    let plain = format!("{}&sslmode=require", database.url());
    refused(
        trusting(&plain).connect(),
        &["asks for TLS, and the server has none"],
    );
    // Not even with the greeting of TLS.
    let direct = format!("{plain}&sslnegotiation=direct");
    let error = trusting(&direct).connect().expect_err("it has no TLS");
    assert!(!error.to_string().is_empty());
    let (_listener, port) = silent();
    let silent = format!("postgres://x@127.0.0.1:{port}/x?sslmode=require&connect_timeout=1");
    let error = trusting(&silent).connect().expect_err("nobody answers");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_unix_socket_needs_no_certificate() {
    let database = cluster::lent();
    let (folder, port, name) = (
        cluster::socket_folder().display(),
        database.port(),
        database.name(),
    );
    let url = format!("host={folder} port={port} dbname={name} user=postgres sslmode=verify-full");
    let builder = Postgres::builder(&url).expect("a URL");
    let builder = builder.tls_root_certificate_pem(Authority::new().pem);
    assert!(!is_encrypted(builder.connect(), &database));
}

#[test]
fn what_can_not_be_checked_is_refused_before_anybody_is_asked() {
    let authority = Authority::new();
    let builder = |url: &str| Postgres::builder(url).expect("a URL");
    let forgotten = builder("postgres://x@db.test/x").tls_root_certificate_pem(&*authority.pem);
    refused(
        forgotten.connect(),
        &["does not ask for TLS", "sslmode=verify-full"],
    );
    let no_name = builder("host='no name' sslmode=require");
    let no_name = no_name.tls_root_certificate_pem(&*authority.pem);
    refused(no_name.connect(), &["\"no name\" is no name"]);
    let no_root = builder("host=db.test sslmode=require").tls_root_certificate_pem("nonsense");
    refused(
        no_root.connect(),
        &["a root certificate is no certificate in PEM"],
    );
}
