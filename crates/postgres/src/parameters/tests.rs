//! Tests of URLs, files and variables.

use super::*;

/// Reads with these variables.
fn read_with(url: &str, variables: &[(&str, &str)]) -> Result<Parameters, String> {
    let var = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    read(url, &var, "ABuilder")
}

fn config(url: &str) -> Config {
    read_with(url, &[])
        .map_err(|why| format!("{url}: {why}"))
        .expect("a URL")
        .config
}

/// The configuration that the driver reads from pairs, with the defaults of the crate.
fn expected(pairs: &str) -> Config {
    let mut config: Config = pairs.parse().expect("pairs");
    config.ssl_mode(SslMode::Disable);
    if config.get_application_name().is_none() {
        config.application_name("tourbillon");
    }
    config
}

#[test]
fn urls_and_pairs_are_read_as_psql_reads_them() {
    for (url, pairs) in [
        (
            "postgres://u:p@h:7/d",
            "user=u password=p host=h port=7 dbname=d",
        ),
        ("postgresql://h", "host=h"),
        ("postgres://u@h/", "user=u host=h"),
        (
            "postgres://u%40x:a%2Fb%25@h/d%20e",
            r"user=u@x password=a/b% host=h dbname='d e'",
        ),
        (
            "postgres://a:1,b,[::1]:2/d",
            "host=a,b,::1 port=1,,2 dbname=d",
        ),
        ("postgres://%2Frun%2Fpg/d", "host=/run/pg dbname=d"),
        (
            "postgres://u:sslmode=verify-ca@h/d",
            "user=u password=sslmode=verify-ca host=h dbname=d",
        ),
        (
            "postgres://h/d?connect_timeout=3&user=u",
            "host=h dbname=d connect_timeout=3 user=u",
        ),
        (
            "postgres://u:a?b@h?options=-c%20geqo%3Doff",
            "user=u password=a?b host=h options='-c geqo=off'",
        ),
        (
            "postgres://h?tcp_user_timeout=2000&keepalives_count=3",
            "host=h tcp_user_timeout=2 keepalives_retries=3",
        ),
        (
            "  host = h  user='u u'  password=it\\'s ",
            r"host=h user='u u' password='it\'s'",
        ),
        (r"host=h password='a\\b\'c'", r"host=h password='a\\b\'c'"),
        ("host=h port='' password='' user=u", "host=h user=u"),
        ("host=h user=a user=b", "host=h user=b"),
        (
            "host=h fallback_application_name=f",
            "host=h application_name=f",
        ),
        (
            "host=h application_name=n fallback_application_name=f",
            "host=h application_name=n",
        ),
        (
            "hostaddr=1.2.3.4 target_session_attrs=primary",
            "hostaddr=1.2.3.4 target_session_attrs=read-write",
        ),
        (
            "host=h connect_timeout=0 keepalives=0",
            "host=h keepalives=0",
        ),
        ("host=h client_encoding=UTF-8 gssencmode=prefer", "host=h"),
    ] {
        assert_eq!(config(url), expected(pairs), "{url}");
    }
}

#[test]
fn the_modes_of_libpq_are_known_in_urls_and_pairs() {
    use Encryption::{None, TrustedAuthority, TrustedHost};
    for (mode, expected) in [
        ("disable", None),
        ("allow", None),
        ("prefer", None),
        ("require", TrustedHost),
        ("verify-ca", TrustedAuthority),
        ("verify-full", TrustedHost),
    ] {
        for url in [
            format!("postgres://u:p@h/d?sslmode={mode}"),
            format!("postgresql://h?connect_timeout=3&sslmode={mode}&user=u"),
            format!("host=h sslmode = '{mode}'"),
            format!("password='sslmode=disable' host=h sslmode={mode}"),
            format!("host=h sslmode=disable sslmode=verify-ca sslmode={mode}"),
        ] {
            let read = read_with(&url, &[("PGSSLMODE", "verify-ca")]).ok();
            assert_eq!(read.expect(&url).encryption, expected, "{url}");
        }
    }
    let of_environment = read_with("host=h", &[("PGSSLMODE", "verify-full")]).ok();
    assert_eq!(of_environment.expect("a URL").encryption, TrustedHost);
    let by_jdbc = read_with("postgres://h?ssl=true", &[]).map(|read| read.encryption);
    assert_eq!(by_jdbc, Ok(TrustedHost));
}

#[test]
fn what_is_not_said_comes_from_the_environment() {
    let all = [
        ("PGHOST", "a,b"),
        ("PGPORT", "7"),
        ("PGUSER", "u"),
        ("PGDATABASE", "d"),
        ("PGPASSWORD", "p"),
        ("PGAPPNAME", "n"),
        ("PGCONNECT_TIMEOUT", "3"),
        ("PGOPTIONS", "-c geqo=off"),
        ("PGTARGETSESSIONATTRS", "read-write"),
        ("PGCHANNELBINDING", "require"),
        ("PGCLIENTENCODING", "LATIN1"),
        ("PGSSLCERT", ""),
    ];
    let read = |url: &str| read_with(url, &all).map(|read| read.config).expect(url);
    let whole = "host=a,b port=7 user=u dbname=d password=p application_name=n connect_timeout=3 \
                     options='-c geqo=off' target_session_attrs=read-write channel_binding=require";
    assert_eq!(read(""), expected(whole));
    let other = whole
        .replace("host=a,b", "host=h")
        .replace("user=u", "user=v");
    assert_eq!(read("postgres://v@h"), expected(&other));
    assert_eq!(read("host=h user=v"), expected(&other));
}

#[test]
fn without_a_host_the_server_of_this_machine_is_meant() {
    let config = config("user=u");
    let [host] = config.get_hosts() else {
        panic!("one host: {config:?}");
    };
    let host = format!("{host:?}");
    assert!(
        ["var/run", "tmp", "localhost"]
            .iter()
            .any(|known| host.contains(known)),
        "{host}"
    );
}

#[test]
fn what_the_crate_can_not_do_is_refused_by_its_name() {
    for (name, variable, kind) in PARAMETERS {
        if *kind == Kind::Used {
            continue;
        }
        let refused = [format!("host=h {name}=1"), format!("postgres://h?{name}=1")]
            .map(|url| read_with(&url, &[]).map(drop).expect_err(name));
        for refused in refused {
            assert!(
                refused.contains(&format!("{name:?} is not supported")),
                "{refused}"
            );
        }
        if !variable.is_empty() {
            let refused = read_with("host=h", &[(variable, "1")]).map(drop);
            let refused = refused.expect_err(name);
            assert!(
                refused.contains(name) && refused.contains(variable),
                "{refused}"
            );
        }
    }
    for (url, reason) in [
        (
            "host=h sslkey=k",
            "use `ABuilder::tls_client_certificate_pem`",
        ),
        ("nonsense", "has no `=`"),
        ("host=h passwort=secret", "no parameter \"passwort\""),
        ("host=h sslmode=verify", "invalid value of \"sslmode\""),
        ("postgres://h?sslmode=", "invalid value of \"sslmode\""),
        ("host=h port=70000", "is no number up to 65535"),
        ("host=h hostaddr=here", "invalid value of \"hostaddr\""),
        (
            "host=h connect_timeout=soon",
            "invalid value of \"connect_timeout\"",
        ),
        (
            "host=h target_session_attrs=standby",
            "\"target_session_attrs\": \"standby\"",
        ),
        ("host=h gssencmode=require", "\"gssencmode\""),
        ("host=h client_encoding=LATIN1", "always UTF-8"),
        ("host=h sslrootcert=/ca.crt", "sslmode=verify-full"),
        ("host=h password='secret", "has no end"),
        ("postgres://u:secret%2@h", "`%`"),
        ("postgres://u:secret%00@h", "`%`"),
        ("postgres://u:secret%ff@h", "UTF-8"),
        ("postgres://u:secret/x@h/d", "`%2F`"),
        ("postgres://u:x@secret@h/d", "`%40`"),
        ("host=h password='secret\0'", "zero byte"),
        ("host=h port=-1", "is no number"),
        ("host=h port=99999999999999999999", "is no number"),
        ("postgres://u:987654/x@h/d", "`%2F`"),
        ("postgres://[::1/d", "has no end"),
        ("postgres://h?user", "has no `=`"),
    ] {
        let refused = read_with(url, &[]).map(drop).expect_err(url);
        assert!(refused.contains(reason), "{url}: {refused}");
        assert!(!refused.contains("secret"), "{refused}");
    }
}

/// A folder that ends with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("tourbillon-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        Folder(folder)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

#[test]
fn a_service_comes_before_the_environment_and_after_the_url() {
    let folder = Folder::new("services");
    let text = "# services\n[other]\nhost=x\n\n[shop]\nhost=of-service\n  port=7 \nuser=s\nuser=t\n\
                    [next]\nhost=y\nservice=shop\n[broken]\nno parameter\n[ldap]\nsslcert=x\n";
    let file = folder.write("mine", text);
    let home = folder.0.display().to_string();
    let variables = [
        ("PGSERVICEFILE", &*file),
        ("PGUSER", "e"),
        ("PGDATABASE", "d"),
        ("PGSERVICE", "shop"),
    ];
    let read = |url: &str, variables| read_with(url, variables).map(|read| read.config);
    let of_service = expected("host=of-service port=7 user=s dbname=d");
    assert_eq!(read("", &variables), Ok(of_service.clone()));
    assert_eq!(read("service=shop", &variables[..3]), Ok(of_service));
    let of_url = expected("host=h port=7 user=s dbname=d");
    assert_eq!(
        read("postgres://h?service=shop", &variables[..3]),
        Ok(of_url)
    );
    for (service, reason) in [
        ("nobody", "no service \"nobody\""),
        ("next", "can't name another one"),
        ("broken", "is no parameter"),
        ("ldap", "\"sslcert\" is not supported"),
    ] {
        let url = format!("service={service}");
        let refused = read(&url, &variables[..1]).expect_err(service);
        assert!(refused.contains(reason), "{refused}");
    }
    let missing = read("service=x", &[("PGSERVICEFILE", "/nowhere/at/all")]);
    assert!(missing.expect_err("none").contains("no file of services"));
    // The file in the home folder, and then the file of the machine.
    folder.write(".pg_service.conf", "[a]\nhost=of-home\n");
    folder.write("pg_service.conf", "[a]\nhost=never\n[b]\nhost=of-machine\n");
    let variables = [("HOME", &*home), ("PGSYSCONFDIR", &*home)];
    assert_eq!(read("service=a", &variables), Ok(expected("host=of-home")));
    assert_eq!(
        read("service=b", &variables),
        Ok(expected("host=of-machine"))
    );
}

#[cfg(unix)]
#[test]
fn a_file_of_passwords_is_read_unless_others_may_use_it() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("passwords");
    let text = "# h:5432:d:u:comment\nshort:line\nh:5432:d:u:one:with\\:colons\\\\\n\
                    *:5432:d:u:two\nlocalhost:*:*:*:three\na\\:b:1:*:u:four\nempty:*:*:*:\n";
    folder.write(".pgpass", text);
    let home = folder.0.display().to_string();
    let variables = [("HOME", &*home), ("USER", "u")];
    let file = |url: &str| read_with(url, &variables).map(|read| read.password_file);
    let of = file("host=h dbname=d")
        .expect("a URL")
        .expect("no password is given");
    let names =
        |names: &[&str]| -> Vec<String> { names.iter().map(|&name| name.to_owned()).collect() };
    let set = |mode| {
        let path = folder.0.join(".pgpass");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    };
    set(0o644);
    let left_out = of
        .password(&names(&["h"]), 5432)
        .expect_err("others may read it");
    assert!(left_out.contains("0600"), "{left_out}");
    set(0o600);
    let password = |name: &str, port| of.password(&names(&[name]), port).expect("it is read");
    assert_eq!(password("h", 5432).as_deref(), Some("one:with:colons\\"));
    assert_eq!(password("x", 5432).as_deref(), Some("two"));
    assert_eq!(password("localhost", 1).as_deref(), Some("three"));
    assert_eq!(password("a:b", 1).as_deref(), Some("four"));
    assert_eq!(password("a", 1), None);
    assert_eq!(password("empty", 1), None);
    assert_eq!(
        of.password(&names(&["/tmp", "localhost"]), 1)
            .ok()
            .flatten()
            .as_deref(),
        Some("three")
    );
    // With a password in the URL no file is read.
    assert_eq!(file("host=h password=p"), Ok(None));
    let other = file("host=h passfile=/nowhere")
        .expect("a URL")
        .expect("a file");
    assert_eq!(other.password(&names(&["h"]), 5432), Ok(None));
    let folder_as_file = file(&format!("host=h passfile={home}"))
        .expect("a URL")
        .expect("a file");
    assert!(folder_as_file.password(&names(&["h"]), 1).is_err());
}

/// No text makes the reader panic, wherever its characters end.
#[test]
fn any_text_is_a_url_or_refused() {
    let pieces = [
        "postgres://",
        "host=",
        "'",
        "\\",
        "%",
        "%4",
        "%C3",
        "é",
        "\0",
        "[",
        "]",
        ":",
        "@",
        "/",
        "?",
        "&",
        "=",
        ",",
        " ",
        "u",
        "9",
        "sslmode",
        "connect_timeout=-9223372036854775809",
        "\u{2028}",
    ];
    let mut read = 0;
    for first in pieces {
        for second in pieces {
            for third in pieces {
                for url in [
                    format!("{first}{second}{third}"),
                    format!("postgres://u:p@h{first}{second}{third}"),
                    format!("host=h {first}{second}{third}"),
                ] {
                    read += usize::from(read_with(&url, &[]).is_ok());
                }
            }
        }
    }
    assert!(read > 0);
    let many = format!("postgres://u:p@{}h/d", "h,".repeat(10_000));
    assert_eq!(config(&many).get_hosts().len(), 10_001);
}
