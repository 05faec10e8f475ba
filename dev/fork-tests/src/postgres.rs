//! Connections to a PostgreSQL server.

use std::pin::pin;
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tourbillon_postgres::tokio_postgres::SimpleQueryMessage;
use tourbillon_postgres::{
    Caller, Client, Connector, Heard, Link, Listening, PostgresError, Session,
};

use crate::child::{Report, in_copy};

const CALLER: Caller = Caller {
    package: "fork-tests",
    builder: "ConnectorBuilder",
    threads: "fork",
};

const PATIENCE: Duration = Duration::from_secs(60);

/// What a copy has of its original.
struct Inherited {
    connector: Connector,
    link: Link,
    /// It was never used.
    closed: Link,
    listening: Listening,
}

/// Forks while a connection is open and another one listens. The copies drop both.
pub(crate) fn run(forks: usize, url: &str) -> Option<String> {
    let connector = connector(url);
    let (sender, heard) = channel();
    let said = move |heard: Heard<'_>| drop(sender.send(format!("{heard:?}")));
    let listening = connector.listen("bell", PATIENCE, said);
    let mut inherited = Some(Inherited {
        link: link(&connector),
        closed: link(&connector),
        listening: listening.expect("there is a thread"),
        connector,
    });
    let of_original = session(&mut inherited.as_mut()?.link);
    let mut wrong = (next(&heard) != "Open").then(|| "nobody listens".to_owned());
    for _ in 0..forks {
        wrong = wrong.or_else(|| in_copy(|report| in_the_copy(report, inherited.take(), url)));
        // The original goes on as before, by the same session.
        let link = &mut inherited.as_mut()?.link;
        wrong = wrong
            .or_else(|| {
                let found = session(link);
                (found != of_original).then(|| format!("{found:?} after {of_original:?}"))
            })
            .or_else(|| {
                let rung = link.batch(PATIENCE, "notify bell, 'ring'");
                let found = next(&heard);
                let is_heard = rung.is_ok() && found == "Notified(\"ring\")";
                (!is_heard).then(|| format!("{rung:?}, {found}"))
            });
    }
    wrong
}

fn connector(url: &str) -> Connector {
    let builder = Connector::builder(url, CALLER).expect("the argument is a URL");
    builder.build().expect("it has a host")
}

fn link(connector: &Connector) -> Link {
    let session = Session::usual(PATIENCE, PATIENCE);
    Link::new(connector.clone(), session).expect("there is room for a runtime")
}

/// The number of the session on the server.
fn session(link: &mut Link) -> Result<Option<String>, PostgresError> {
    link.ready(PATIENCE, async |_| Ok::<_, PostgresError>(()))?;
    let asked = link.ask(PATIENCE, async |client: &Client| {
        client.simple_query("select pg_backend_pid()").await
    });
    let messages = asked.and_then(Result::ok).unwrap_or_default();
    Ok(messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

fn next(heard: &Receiver<String>) -> String {
    let heard = heard.recv_timeout(PATIENCE);
    heard.unwrap_or_else(|error| error.to_string())
}

fn in_the_copy(report: &mut Report, inherited: Option<Inherited>, url: &str) {
    let Some(inherited) = inherited else {
        return report.check("what it has", false, &"nothing");
    };
    let Inherited {
        connector,
        mut link,
        mut closed,
        listening,
    } = inherited;
    report.check("the connector", connector.is_elsewhere(), &connector);
    for link in [&mut link, &mut closed] {
        let answer = link.ready(PATIENCE, async |_| Ok(()));
        let is_forked = answer == Err(PostgresError::Forked);
        report.check("ready", is_forked, &answer);
        let answer = link.batch(PATIENCE, "select 1");
        let answer = answer.map_err(tourbillon_postgres::Failure::into_error);
        report.check("batch", answer == Err(PostgresError::Forked), &answer);
        let answer = link.ask(PATIENCE, async |_| ());
        report.check("ask", answer.is_none(), &answer);
    }
    let answer = connector.listen("bell", PATIENCE, |_| ()).map(drop);
    report.check("listen", answer == Err(PostgresError::Forked), &answer);
    let usual = Session::usual(PATIENCE, PATIENCE);
    let polled = {
        let mut open = pin!(connector.open(&usual, "", |_, _| ()));
        open.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    };
    let is_forked = matches!(polled, Poll::Ready(Err(PostgresError::Forked)));
    report.check("open", is_forked, &"another answer");
    report.step("drops");
    drop((link, closed, listening));

    report.step("one of its own");
    let mut own = self::link(&self::connector(url));
    let answer = session(&mut own);
    report.check("its own session", matches!(answer, Ok(Some(_))), &answer);
}
