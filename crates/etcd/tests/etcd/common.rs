//! What the tests share: a server, stores with prefixes of their own, and their usual calls.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use chaos::servers::etcd::Server;
use kit::wait;
use tourbillon_etcd::EtcdStore;
use tourbillon_leases::{
    Acquired, Claim, Destination, Outcome, Released, Renewal, Secret, StoreError,
};

use crate::calls::Calls;

/// Nothing that answers takes so long.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const S: Duration = Duration::from_secs(1);
pub(crate) const MS: Duration = Duration::from_millis(1);

/// The server of all tests that do it no harm. It ends with the process.
pub(crate) fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(Server::start)
}

/// The keys of one test on that server.
pub(crate) struct Place(pub(crate) String);

pub(crate) fn place() -> Place {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    Place(format!("test {}/", NEXT.fetch_add(1, SeqCst)))
}

impl Place {
    pub(crate) fn store(&self) -> EtcdStore {
        let builder = EtcdStore::builder(&server().url());
        builder.prefix(&*self.0).build().expect("the URL is good")
    }

    /// A key, as the gateway for JSON takes it.
    pub(crate) fn key(&self, name: &str) -> String {
        base64(format!("{}{name}", self.0).as_bytes())
    }
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = usize::try_from(bits >> (18 - 6 * at) & 63).unwrap();
            text.push(if at > three.len() {
                '='
            } else {
                char::from(DIGITS[digit])
            });
        }
    }
    text
}

pub(crate) fn claim<'a>(name: &'a str, owner: &'a str) -> Claim<'a> {
    Claim::new(name, owner, Secret::new(owner), LEASE)
}

pub(crate) fn acquire(store: &EtcdStore, name: &str, owner: &str) -> Result<Acquired, StoreError> {
    store.acquire(&claim(name, owner), LIMIT)
}

/// Takes what has to be free.
#[track_caller]
pub(crate) fn granted(store: &EtcdStore, name: &str, owner: &str) -> u64 {
    match acquire(store, name, owner) {
        Ok(Acquired::Granted { token, .. }) => token,
        other => panic!("{name} is not granted: {other:?}"),
    }
}

/// Asks for what somebody else has, and returns how long it is held.
#[track_caller]
pub(crate) fn held(store: &EtcdStore, claim: &Claim<'_>) -> Duration {
    match store.acquire(claim, LIMIT) {
        Ok(Acquired::Held { remaining }) => remaining,
        other => panic!("{} is held: {other:?}", claim.name),
    }
}

pub(crate) fn renew(store: &EtcdStore, batch: &[Renewal<'_>]) -> Vec<Outcome> {
    let outcomes = store.renew(Destination::default(), batch, LIMIT);
    outcomes.expect("the server is there")
}

pub(crate) fn release(store: &EtcdStore, name: &str, owner: &str) -> Released {
    store
        .release(name, Secret::new(owner), LIMIT)
        .expect("the server is there")
}

/// Asks until a connection was made anew.
pub(crate) fn patiently<T>(
    mut ask: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let mut answer = ask();
    wait::until("the server is reached", || {
        if !matches!(answer, Err(StoreError::Unavailable(_))) {
            return true;
        }
        answer = ask();
        false
    });
    answer
}

#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(answer: &Result<T, StoreError>, words: &[&str]) {
    let Err(StoreError::Refused(why)) = answer else {
        panic!("it is refused: {answer:?}");
    };
    for word in words {
        assert!(why.contains(word), "{word}: {why}");
    }
}
