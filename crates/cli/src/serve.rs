//! The page, served to browsers.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tourbillon_durable::Durable;
use tourbillon_web::{Access, Action, Page, basic_user};

use crate::args::{Allowed, ServeArgs};
use crate::failure::Failure;
use crate::{stores, table};

/// Serves the page until Ctrl-C or SIGTERM. `say` gets the address.
pub(crate) fn run(
    timers: &Durable,
    args: &ServeArgs,
    timeout: Duration,
    say: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<(), Failure> {
    let password = args
        .password
        .clone()
        .filter(|password| !password.is_empty());
    if password.is_none() && !args.no_auth && !args.listen.ip().is_loopback() {
        return Err(Failure::Usage(format!(
            "everybody who reaches {} could read the page: set TOURBILLON_PASSWORD, or add --no-auth",
            args.listen
        )));
    }
    let allowed: Vec<Action> = args
        .allow
        .iter()
        .flat_map(|Allowed(actions)| actions)
        .copied()
        .collect();
    let mut page = Page::new()
        .timers("timers", timers)
        .show_payloads(args.show_payloads)
        .on_action(|event| eprintln!("{}", table::plain(&event.to_string())));
    if let Some(store) = stores::locks(&args.locks)? {
        page = page.locks("locks", &stores::leases(store, timeout)?);
    }
    if password.is_none() && args.listen.ip().is_loopback() {
        // A site whose name leads to this machine would read the page in its visitors' browsers.
        page = page.hosts(["localhost".to_owned(), host(args.listen)]);
    }
    let page = page.access(move |request| match &password {
        None => Access::only("somebody", allowed.clone()),
        Some(password) => match basic_user(request, password) {
            Some(user) => Access::only(user, allowed.clone()),
            None => Access::sign_in(),
        },
    });
    let threads = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    threads.block_on(async {
        let refused = |error| Failure::Usage(format!("{} can't be served: {error}", args.listen));
        let listener = TcpListener::bind(args.listen).await.map_err(refused)?;
        let address = listener.local_addr()?;
        say(&format!("http://{address}/"))?;
        let stopped = stopped()?;
        let server = axum::serve(listener, page.router());
        // Live pages never end by themselves, so the requests under way are not waited for.
        tokio::select! {
            ended = server => Ok(ended?),
            () = stopped => Ok(()),
        }
    })
}

fn host(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}

#[cfg(unix)]
fn stopped() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

#[cfg(not(unix))]
fn stopped() -> io::Result<impl Future<Output = ()>> {
    Ok(async {
        // Without a signal the process is ended from outside.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    })
}
