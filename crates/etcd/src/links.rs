//! The connections to the servers of a cluster.
//!
//! - **ETCDLINK-1** A store has one connection, to one server of its list. It is given up, and the next call connects to
//!   the next server, when the connection fails, when the server has no leader or has lost it, or when a request times out
//!   and nothing was answered on the connection for a tenth of a second, although something was asked. Requests that are
//!   under way on a connection that was given up go on. A connection without answers also ends by the pings of HTTP/2.
//! - **ETCDLINK-2** A connection is made by a task of its own, with a limit of its own. So it is made however short the
//!   limits of the callers are, and all callers share it.
//! - **ETCDLINK-3** After a failure nobody connects for a while, and calls fail with the same error.
//! - **ETCDLINK-4** Each request says that it needs a leader (`hasleader`). A server that is cut off from the others then
//!   refuses the request, and ends a watch.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};
use tokio::time::timeout;
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::metadata::{AsciiMetadataValue, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tourbillon_leases::StoreError;

use crate::failure::{Fault, described};
use crate::limit::Limit;
use crate::messages::{AUTHENTICATE, AuthenticateRequest, AuthenticateResponse};
use crate::sync::{Arc, Mutex, lock};

/// The time for a connection to one server, with TLS and login.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// How long nobody connects after a failure (ETCDLINK-3).
const PAUSE: Duration = Duration::from_millis(50);

/// A connection on which nothing was answered for so long is given up (ETCDLINK-1). With less, a caller with a very short
/// limit would give up each connection over a long way.
const SILENCE: Duration = Duration::from_millis(100);

/// The server answers up to 1.5 MiB for each key, and a page has many.
const LARGEST_ANSWER: usize = 256 << 20;

/// All connections of a store.
pub(crate) struct Links {
    servers: Vec<Server>,
    user: Option<(String, String)>,
    slot: Arc<AsyncMutex<Slot>>,
}

/// A server that is named in the URL.
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
}

struct Slot {
    /// The server of the link, or the one to begin with.
    at: usize,
    link: Option<Arc<Link>>,
    failed: Option<(Instant, StoreError)>,
}

impl Links {
    /// Begins with any of the servers, so that the stores of many programs are spread over all of them.
    pub(crate) fn new(servers: Vec<Server>, user: Option<(String, String)>) -> Self {
        let random = RandomState::new().hash_one(std::process::id());
        let many = u64::try_from(servers.len().max(1)).unwrap_or(1);
        let at = usize::try_from(random % many).unwrap_or(0);
        Links {
            servers,
            user,
            slot: Arc::new(AsyncMutex::new(Slot {
                at,
                link: None,
                failed: None,
            })),
        }
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.servers.iter().map(|one| &*one.name).collect()
    }

    /// Returns the connection, which is made if there is none.
    ///
    /// # Errors
    ///
    /// If no server can be reached within the limit, or one refuses the user.
    pub(crate) async fn link(self: &Arc<Self>, limit: Limit) -> Result<Arc<Link>, StoreError> {
        let late = |_| {
            limit.reached(&format!(
                "no connection to etcd at {}",
                self.names().join(", ")
            ))
        };
        let slot = Arc::clone(&self.slot).lock_owned();
        let slot = timeout(limit.left(), slot).await.map_err(late)?;
        match &slot.link {
            Some(link) if !link.is_given_up() => return Ok(Arc::clone(link)),
            _ => {}
        }
        if let Some((when, error)) = &slot.failed
            && when.elapsed() < PAUSE
        {
            return Err(error.clone());
        }
        // The task has the slot until it ends (ETCDLINK-2).
        let connects = tokio::spawn(connect_to_any(Arc::clone(self), slot));
        match timeout(limit.left(), connects).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(_)) => Err(StoreError::Unavailable(
                "etcd: the store was dropped".to_owned(),
            )),
            Err(elapsed) => Err(late(elapsed)),
        }
    }
}

/// Tries each server once.
async fn connect_to_any(
    links: Arc<Links>,
    mut slot: OwnedMutexGuard<Slot>,
) -> Result<Arc<Link>, StoreError> {
    // The server of a connection that was given up comes last.
    let first = slot.at + usize::from(slot.link.take().is_some());
    let mut failed = StoreError::Unavailable("etcd: the URL names no server".to_owned());
    for number in first..first + links.servers.len() {
        let at = number % links.servers.len();
        let server = &links.servers[at];
        let limit = Limit::new(CONNECT_LIMIT);
        let connects = Link::connect(server, links.user.as_ref());
        failed = match timeout(limit.left(), connects).await {
            Ok(Ok(link)) => {
                let link = Arc::new(link);
                (slot.at, slot.link, slot.failed) = (at, Some(Arc::clone(&link)), None);
                return Ok(link);
            }
            Ok(Err(error)) => error,
            Err(_) => limit.reached(&format!("no connection to etcd at {}", server.name)),
        };
        // The other servers have the same users.
        if !failed.may_pass() {
            break;
        }
    }
    slot.failed = Some((Instant::now(), failed.clone()));
    Err(failed)
}

/// A connection to one server.
pub(crate) struct Link {
    pub(crate) server: String,
    channel: Channel,
    token: Option<AsciiMetadataValue>,
    /// When the first request after the last answer was sent.
    unanswered: Mutex<Option<Instant>>,
    given_up: watch::Sender<bool>,
}

impl Link {
    async fn connect(server: &Server, user: Option<&(String, String)>) -> Result<Self, StoreError> {
        let channel = server.endpoint.connect().await.map_err(|error| {
            StoreError::Unavailable(format!("etcd at {}: {}", server.name, described(&error)))
        })?;
        let mut link = Link {
            server: server.name.clone(),
            channel,
            token: None,
            unanswered: Mutex::new(None),
            given_up: watch::Sender::new(false),
        };
        if let Some((name, password)) = user {
            link.token = link.login(name, password).await?;
        }
        Ok(link)
    }

    async fn login(
        &self,
        name: &str,
        password: &str,
    ) -> Result<Option<AsciiMetadataValue>, StoreError> {
        let asks = AuthenticateRequest {
            name: name.to_owned(),
            password: password.to_owned(),
        };
        match self
            .unary::<_, AuthenticateResponse>(AUTHENTICATE, asks)
            .await
        {
            Ok(answer) => match MetadataValue::try_from(&answer.token) {
                Ok(mut token) => {
                    token.set_sensitive(true);
                    Ok(Some(token))
                }
                Err(_) => Err(StoreError::Unavailable(format!(
                    "etcd at {}: its token is no text",
                    self.server
                ))),
            },
            // As etcd's own clients do it: without users everybody may do everything.
            Err(status) if is_without_users(&status) => Ok(None),
            Err(status) => Err(Fault::of(&self.server, &status).error),
        }
    }

    /// Makes a request with one answer.
    pub(crate) async fn unary<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc().await?;
        let codec = ProstCodec::<Q, A>::default();
        let request = self.request(message);
        let answer = grpc
            .unary(request, PathAndQuery::from_static(path), codec)
            .await?;
        Ok(answer.into_inner())
    }

    /// Makes requests whose answers are a stream.
    pub(crate) async fn streaming<Q, A>(
        &self,
        path: &'static str,
        messages: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc().await?;
        let codec = ProstCodec::<Q, A>::default();
        let request = self.request(messages);
        let answer = grpc
            .streaming(request, PathAndQuery::from_static(path), codec)
            .await?;
        Ok(answer.into_inner())
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(LARGEST_ANSWER);
        let ready = grpc.ready().await;
        ready.map_err(|error| Status::unavailable(described(&error)))?;
        Ok(grpc)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        // ETCDLINK-4.
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            metadata.insert("token", token.clone());
        }
        request
    }

    /// Notes that a request is sent.
    pub(crate) fn asks(&self) {
        lock(&self.unanswered).get_or_insert_with(Instant::now);
    }

    /// Notes that the server has answered.
    pub(crate) fn has_answered(&self) {
        *lock(&self.unanswered) = None;
    }

    /// Gives the connection up if a request has timed out and nothing was answered for long (ETCDLINK-1).
    pub(crate) fn has_timed_out(&self) {
        let since = *lock(&self.unanswered);
        if since.is_some_and(|since| since.elapsed() >= SILENCE) {
            self.give_up();
        }
    }

    fn is_given_up(&self) -> bool {
        *self.given_up.borrow()
    }

    /// Makes the next call connect again, to the next server (ETCDLINK-1).
    pub(crate) fn give_up(&self) {
        self.given_up.send_replace(true);
    }

    /// Returns when the connection is given up.
    pub(crate) async fn until_given_up(&self) {
        let mut given_up = self.given_up.subscribe();
        // The sender lives as long as this.
        let _ = given_up.wait_for(|given_up| *given_up).await;
    }
}

fn is_without_users(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition && status.message().contains("not enabled")
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links")
            .field("servers", &self.names())
            .finish_non_exhaustive()
    }
}
