//! The store of holders that are processes.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tourbillon_leases::{LeaseStore, PostgresStore, RedisStore, StoreError};

/// A prefix of its own keeps the keys of this program apart from other locks on the server.
const PREFIX: &str = "tourbillon-example";
/// The same for a schema.
const SCHEMA: &str = "tourbillon_example";
/// The tokens of this program are removed soon.
const TOKEN_LIFE: Duration = Duration::from_secs(60);

/// A server, by its URL.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Server {
    Redis(String),
    Postgres(String),
}

impl Server {
    /// The store of all processes.
    pub(crate) fn open(&self, lease: Duration) -> Result<Arc<dyn LeaseStore>, String> {
        Ok(match self {
            Server::Redis(url) => Arc::new(redis(url, lease)?),
            Server::Postgres(url) => Arc::new(postgres(url, lease)?),
        })
    }

    /// Whether it grants locks.
    pub(crate) fn check(
        &self,
        lease: Duration,
        limit: Duration,
    ) -> Result<Result<(), StoreError>, String> {
        Ok(match self {
            Server::Redis(url) => redis(url, lease)?.check(limit),
            Server::Postgres(url) => postgres(url, lease)?.check(limit),
        })
    }
}

/// Its longest lease is the lease that the program uses. So the wait for a server that has just
/// started is as short as possible.
fn redis(url: &str, lease: Duration) -> Result<RedisStore, String> {
    let store = RedisStore::builder(url)
        .prefix(PREFIX)
        .longest_lease(lease)
        .token_life(TOKEN_LIFE)
        .build();
    store.map_err(|error| error.to_string())
}

/// Other runs may have had other leases.
fn postgres(url: &str, lease: Duration) -> Result<PostgresStore, String> {
    let store = PostgresStore::builder(url)
        .schema(SCHEMA)
        .longest_lease(lease)
        .longest_lease_changes()
        .token_life(TOKEN_LIFE)
        .build();
    store.map_err(|error| error.to_string())
}
