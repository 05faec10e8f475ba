//! The way to the server: poolers, proxies that hide announcements, TLS, and passwords that change.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use chaos::servers::pgbouncer::Pooler;
use chaos::servers::postgres::{Cluster, Database, database};
use kit::wait;
use tourbillon_leases::{Acquired, Leases, PostgresStore, Released, StoreError};

use crate::calls::Calls;
use crate::shop::{LIMIT, acquire, cut, granted, patiently, psql, refused, release, store};

/// A caller that waits by `url` gets what a holder gives back, although it would ask by itself in an
/// hour.
fn gets_what_it_waits_for(database: &Database, url: &str) {
    let holders = Leases::new(store(database)).unwrap();
    let waiting = Leases::builder(PostgresStore::open(url).unwrap());
    let waiting = waiting.poll(Duration::from_secs(3_600)).build().unwrap();
    let guard = holders
        .lock("x")
        .lease(Duration::from_secs(30))
        .wait()
        .unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiting.lock("x").within(LIMIT).wait().map(drop));
        wait::until("it waits", || {
            psql(
                database,
                "select count(*) from tourbillon_leases.lease where waiter is not null",
            ) == "1"
        });
        guard.release().wait().unwrap();
        waits.join().unwrap().unwrap();
    });
    // A permit, in the same way.
    let permit = |leases: &Leases| leases.lock("y").permit_of(1).within(LIMIT).wait();
    let held = permit(&holders).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| permit(&waiting).map(drop));
        wait::until("it waits", || {
            psql(
                database,
                "select count(*) from tourbillon_leases.lease where waiter is not null",
            ) == "1"
        });
        held.release().wait().unwrap();
        waits.join().unwrap().unwrap();
    });
}

// === poolers and proxies ===

#[test]
#[cfg_attr(
    not(all(has_postgres, has_pgbouncer)),
    ignore = "needs: apt-get install postgresql pgbouncer"
)]
fn a_pool_of_sessions_works_and_one_of_transactions_is_refused() {
    let database = database();
    for more in ["", "ignore_startup_parameters = options"] {
        let pooler = Pooler::start(&database, "session", more);
        gets_what_it_waits_for(&database, &pooler.url(&database));
    }
    let pooler = Pooler::start(&database, "transaction", "");
    let store = PostgresStore::open(&pooler.url(&database)).unwrap();
    refused(&acquire(&store, "y", "a:1"), &["pool_mode = session"]);
}

/// Passes everything on but announcements.
fn deaf(server: u16) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            thread::spawn(move || {
                let _ = pass_answers(&server, &client);
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    port
}

/// Each message has a letter and a length, which counts itself.
fn pass_answers(mut server: &TcpStream, mut client: &TcpStream) -> io::Result<()> {
    loop {
        let mut head = [0; 5];
        server.read_exact(&mut head)?;
        let [letter, length @ ..] = head;
        let mut rest = vec![0; u32::from_be_bytes(length) as usize - 4];
        server.read_exact(&mut rest)?;
        if letter != b'A' {
            client.write_all(&[&head[..], &rest].concat())?;
        }
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn where_no_announcement_arrives_waiting_callers_ask() {
    let database = database();
    store(&database).check(LIMIT).unwrap();
    let url = database.url_by(deaf(database.port()));
    gets_what_it_waits_for(&database, &url);
}

// === roles ===

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_role_that_may_only_read_sees_the_locks_and_is_refused_the_rest() {
    let database = database();
    let holder = store(&database);
    let token = granted(&holder, "x", "a:1");
    let role = format!("reader_{}", database.name());
    psql(
        &database,
        &format!(
            "create role {role} login; grant usage on schema tourbillon_leases to {role}; \
             grant select on all tables in schema tourbillon_leases to {role}"
        ),
    );
    let reader = PostgresStore::open(&database.url_of(&role)).unwrap();
    let seen = reader.holder_of("x", LIMIT).unwrap().unwrap();
    assert_eq!(seen.token, token);
    refused(
        &acquire(&reader, "y", "a:1"),
        &["permission denied", "select, insert, update and delete"],
    );
    let checked = reader.check(LIMIT);
    assert!(
        matches!(&checked, Err(StoreError::Refused(why)) if why.contains("execute on all functions")),
        "{checked:?}"
    );
    assert!(reader.holder_of("x", LIMIT).unwrap().is_some());
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_password_that_changes_is_asked_for_at_each_connection() {
    let cluster = Cluster::start();
    let database = cluster.database();
    let set = |password: &str| {
        let sql = format!("alter role rotor password '{password}'");
        psql(&database, &sql);
    };
    psql(&database, "create role rotor superuser login");
    set("one");
    cluster.admit("host all rotor all scram-sha-256\nhost all all all trust\n");
    let password = Arc::new(Mutex::new(Ok("one".to_owned())));
    let asked = Arc::clone(&password);
    let store = PostgresStore::builder(&database.url_of("rotor"));
    let store = store.password_with(move || Ok(asked.lock().unwrap().clone()?));
    let store = store.build().unwrap();
    granted(&store, "x", "a:1");
    set("two");
    cut(&database);
    let old = patiently(|| acquire(&store, "y", "a:1"));
    refused(&old, &["28P01"]);
    assert!(!format!("{old:?} {store:?}").contains("one"));
    *password.lock().unwrap() = Err("the vault is sealed");
    let sealed = acquire(&store, "y", "a:1");
    assert!(
        matches!(&sealed, Err(StoreError::Unavailable(why)) if why.contains("the vault is sealed")),
        "{sealed:?}"
    );
    *password.lock().unwrap() = Ok("two".to_owned());
    // The next attempt begins after a pause.
    let new = patiently(|| acquire(&store, "y", "a:1"));
    assert!(matches!(new, Ok(Acquired::Granted { .. })), "{new:?}");
    assert_eq!(release(&store, "x", "a:1"), Released::Released);
}

// === TLS ===

#[cfg(feature = "postgres-tls")]
mod tls {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use chaos::servers::postgres::give;
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

    use super::*;

    /// An authority of this name, and its certificate.
    fn authority(name: &str) -> (Issuer<'static, KeyPair>, String) {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        (Issuer::new(params, key), pem)
    }

    #[test]
    #[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
    fn locks_are_held_over_tls_and_a_stranger_is_refused() {
        let (issuer, root) = authority("an authority of tests");
        let (_, stranger) = authority("a stranger");
        let params = CertificateParams::new(["db.test".to_owned()]).expect("a host");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        let folder = std::env::temp_dir().join(format!("leases-tls-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        for (name, text) in [
            ("own.crt", certificate.pem()),
            ("own.key", key.serialize_pem()),
        ] {
            let path = folder.join(name);
            fs::write(&path, text).expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
        }
        give(&folder);
        let file = |setting: &str, name: &str| format!("{setting}={}", folder.join(name).display());
        let cluster = Cluster::with(&[
            "fsync=off",
            "ssl=on",
            &file("ssl_cert_file", "own.crt"),
            &file("ssl_key_file", "own.key"),
        ]);
        let database = cluster.database();
        let url = format!(
            "host=db.test hostaddr=127.0.0.1 port={} dbname={} user=postgres sslmode=verify-full",
            database.port(),
            database.name()
        );
        let trusting = |pem: &str| {
            let builder = PostgresStore::builder(&url).tls_root_certificate_pem(pem);
            builder.build().unwrap()
        };
        let store = trusting(&root);
        granted(&store, "x", "a:1");
        let encrypted = "select bool_and(s.ssl) from pg_stat_ssl s join pg_stat_activity using (pid) \
                         where datname = current_database() and pid <> pg_backend_pid()";
        assert_eq!(psql(&database, encrypted), "t");
        refused(
            &acquire(&trusting(&stranger), "y", "a:1"),
            &["certificate is not accepted"],
        );
        let _ = fs::remove_dir_all(&folder);
    }
}
