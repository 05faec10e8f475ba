//! The environment and the files that `psql` reads. Each case is a process of its own, which is
//! this test program, started again: no other test meets its variables.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use tourbillon_durable::Postgres;

use crate::cluster;
use crate::outages;

#[test]
#[ignore = "a part of other tests, which start it"]
fn process() {
    let Ok(url) = std::env::var("POSTGRES_TEST_URL") else {
        return;
    };
    match Postgres::connect(&url) {
        Ok(_) => println!("SAY connected"),
        Err(error) => println!("SAY {error:?}"),
    }
}

/// Returns the answer that a process with these variables gets, without other variables that
/// matter.
fn connects(url: &str, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    command
        .args([
            "--exact",
            "environment::process",
            "--ignored",
            "--nocapture",
        ])
        .env("POSTGRES_TEST_URL", url);
    let output = with(&mut command, variables).output().expect("a process");
    let text = String::from_utf8_lossy(&output.stdout);
    let said = text.split_once("SAY ").map(|(_, said)| said.lines().next());
    said.flatten().unwrap_or(&text).to_owned()
}

fn with<'a>(command: &'a mut Command, variables: &[(&str, &str)]) -> &'a mut Command {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PG")) {
        command.env_remove(name);
    }
    command
        .env("HOME", "/nowhere")
        .envs(variables.iter().copied())
}

/// A URL, the variables beside it, and what is said.
type Case<'a> = (&'a str, Vec<(&'a str, String)>, &'a str);

/// Whether `psql` connects.
fn psql_connects(url: &str, variables: &[(&str, &str)]) -> bool {
    let mut psql = cluster::psql_command();
    psql.args([
        "--no-psqlrc",
        "--no-password",
        "--command",
        "select 1",
        "--dbname",
        url,
    ]);
    let output = with(&mut psql, variables).output().expect("psql");
    output.status.success()
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_environment_and_the_files_of_psql_lead_to_the_same_server() {
    let (_cluster, database, role) = outages::with_passwords();
    database
        .psql(&format!("alter role {role} password 'p:w'"))
        .expect("a superuser");
    let port = database.port().to_string();
    let name = database.name();
    let folder = std::env::temp_dir().join(format!("tourbillon-environment-{port}"));
    fs::create_dir_all(&folder).expect("a folder");
    let write = |file: &str, text: &str, mode| {
        let path = folder.join(file);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        path.display().to_string()
    };
    let line = format!("127.0.0.1:{port}:{name}:{role}:p\\:w\n");
    let home = folder.display().to_string();
    write(".pgpass", &line, 0o600);
    let open = write("open", &line, 0o644);
    let wrong = write("wrong", &line.replace("p\\:w", "not-this"), 0o600);
    let section = format!("[shop]\nhost=127.0.0.1\nport={port}\ndbname={name}\nuser={role}\n");
    let services = write("services", &section, 0o644);
    let place = [
        ("PGHOST", "127.0.0.1"),
        ("PGPORT", &*port),
        ("PGDATABASE", name),
        ("PGUSER", &*role),
    ];
    let and = |more: &[(&'static str, &str)]| -> Vec<(&str, String)> {
        let all = place.iter().chain(more);
        all.map(|(name, value)| (*name, (*value).to_owned()))
            .collect()
    };
    let short = format!("postgres://{role}@127.0.0.1/{name}");
    let cases: [Case<'_>; 10] = [
        ("", and(&[("PGPASSWORD", "p:w")]), "connected"),
        ("", and(&[("HOME", &home)]), "connected"),
        (
            "",
            and(&[("PGPASSFILE", &format!("{home}/.pgpass"))]),
            "connected",
        ),
        (
            &short,
            vec![("PGPORT", port.clone()), ("HOME", home.clone())],
            "connected",
        ),
        (
            "service=shop",
            vec![
                ("PGSERVICEFILE", services.clone()),
                ("PGPASSWORD", "p:w".to_owned()),
            ],
            "connected",
        ),
        (
            "",
            vec![
                ("PGSERVICE", "shop".to_owned()),
                ("PGSERVICEFILE", services),
                ("HOME", home.clone()),
            ],
            "connected",
        ),
        ("", and(&[]), "password missing"),
        ("", and(&[("PGPASSFILE", &open)]), "0600"),
        ("", and(&[("PGPASSFILE", &wrong)]), "28P01"),
        ("service=nobody", vec![("HOME", home.clone())], "no service"),
    ];
    for (url, variables, expected) in cases {
        let variables: Vec<(&str, &str)> = variables
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        let said = connects(url, &variables);
        assert!(said.contains(expected), "{url} {variables:?}: {said}");
        let connected = expected == "connected";
        assert_eq!(
            psql_connects(url, &variables),
            connected,
            "{url} {variables:?}"
        );
        // A try that fails is refused for good, since the next one would fail too.
        assert_eq!(said.starts_with("Refused"), !connected, "{said}");
        assert!(
            !said.contains("p:w") && !said.contains("not-this"),
            "{said}"
        );
    }
    fs::remove_dir_all(&folder).expect("removed");
}
