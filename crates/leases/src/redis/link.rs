//! One connection for calls, from the attempt to connect on.

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use redis::{Pipeline, Value};
use tokio::sync::watch;

use super::errors::CallFault;
use super::scripts::{By, Call};
use super::server::{Open, Server};
use crate::remote::{Limit, Task, no_runtime};
use crate::sync::{Arc, Mutex};

/// The most portions of a call that are under way at one time.
const AHEAD: usize = 4;

/// A connection, or an attempt to connect.
///
/// The answer to a call that was dropped is dropped, too, when it comes. So each call gets its own.
pub(super) struct Link {
    server: Arc<Server>,
    /// `None` until the attempt has ended.
    state: watch::Receiver<Option<Result<Open, CallFault>>>,
    /// The first limit of the calls that wait for the attempt.
    awaited: Mutex<Option<Limit>>,
    /// The attempt, which ends with the last who want its connection.
    _attempt: Task,
}

/// What a call finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkState {
    Connecting,
    Open,
    Failed,
}

impl Link {
    /// Begins to connect, within this limit. Call this within a runtime.
    pub(super) fn new(server: &Arc<Server>, limit: Limit) -> Self {
        let (tell, state) = watch::channel(None);
        let own = Arc::clone(server);
        let attempt = async move {
            let opened = match tokio::time::timeout(limit.left(), own.open(limit)).await {
                Ok(opened) => opened,
                Err(_) => Err(CallFault::late(&*own)),
            };
            // If nobody wants it any more, it is closed.
            let _ = tell.send(Some(opened));
        };
        Link {
            server: Arc::clone(server),
            state,
            awaited: Mutex::default(),
            _attempt: Task::new(tokio::spawn(attempt)),
        }
    }

    pub(super) fn state(&self) -> LinkState {
        match &*self.state.borrow() {
            None => LinkState::Connecting,
            Some(Ok(_)) => LinkState::Open,
            Some(Err(_)) => LinkState::Failed,
        }
    }

    /// Returns whether the connection must not be used again: a call has reached its limit in silence,
    /// or the attempt to connect has failed (LINK-1).
    pub(super) fn is_silent(&self) -> bool {
        match &*self.state.borrow() {
            None => self.awaited.lock().is_some_and(Limit::is_near),
            Some(Ok(open)) => open.received.is_silent(),
            Some(Err(_)) => true,
        }
    }

    /// Returns whether its server was replaced by another master.
    pub(super) fn is_replaced(&self) -> bool {
        match &*self.state.borrow() {
            Some(Ok(open)) => open
                .standing
                .epoch
                .is_some_and(|epoch| self.server.has_replaced(epoch)),
            _ => false,
        }
    }

    /// Waits until it is open. The attempt itself may end later than the limit.
    pub(super) async fn opened(&self, limit: Limit) -> Result<Open, CallFault> {
        if self.state() == LinkState::Connecting {
            let mut awaited = self.awaited.lock();
            *awaited = Some(awaited.map_or(limit, |first| first.min(limit)));
        }
        let mut state = self.state.clone();
        let state = state.wait_for(Option::is_some).await;
        match state.as_deref() {
            Ok(Some(opened)) => opened.clone(),
            _ => Err(CallFault::Other(no_runtime(&self.server.to_string()))),
        }
    }

    /// Calls scripts in portions of this size, and adds the answer of each. After an error, `answers`
    /// has those that came before it.
    pub(super) async fn call(
        &self,
        open: &Open,
        calls: &[Call],
        portion: usize,
        limit: Limit,
        answers: &mut Vec<Value>,
    ) -> Result<(), CallFault> {
        if calls.len() <= portion {
            answers.append(&mut self.call_portion(open, calls, limit).await?);
            return Ok(());
        }
        let (mut portions, mut under_way) = (calls.chunks(portion), FuturesOrdered::new());
        loop {
            while under_way.len() < AHEAD
                && let Some(next) = portions.next()
            {
                under_way.push_back(self.call_portion(open, next, limit));
            }
            match under_way.next().await {
                Some(some) => answers.append(&mut some?),
                None => return Ok(()),
            }
        }
    }

    async fn call_portion(
        &self,
        open: &Open,
        calls: &[Call],
        limit: Limit,
    ) -> Result<Vec<Value>, CallFault> {
        // A hash is much shorter than a script, and the server nearly always has the script.
        let mut answers = self.send(open, calls.iter(), By::Hash, limit).await?;
        let again: Vec<usize> = (0..answers.len())
            .filter(|&at| code(&answers[at]) == Some("NOSCRIPT"))
            .collect();
        if !again.is_empty() {
            let calls = again.iter().map(|&at| &calls[at]);
            let better = self.send(open, calls, By::Text, limit).await?;
            for (at, answer) in again.into_iter().zip(better) {
                answers[at] = answer;
            }
        }
        Ok(answers)
    }

    /// Sends calls in one write, and receives their answers.
    async fn send<'a>(
        &self,
        open: &Open,
        calls: impl ExactSizeIterator<Item = &'a Call>,
        by: By,
        limit: Limit,
    ) -> Result<Vec<Value>, CallFault> {
        let mut commands = Pipeline::with_capacity(calls.len());
        // The answers to `ASKING` are nobody's.
        let mut skipped = Vec::new();
        for call in calls {
            if call.is_asking() {
                skipped.push(commands.len());
                commands.cmd("ASKING");
            }
            commands.add_command(call.command(by, &open.standing));
        }
        let number = commands.len();
        open.received.awaits(limit);
        let mut connection = open.connection.clone();
        let sent = connection.send_packed_commands(&commands, 0, number);
        let mut answers = sent
            .await
            .map_err(|error| open.fault(&error, &self.server))?;
        for at in skipped.into_iter().rev() {
            if at < answers.len() {
                answers.remove(at);
            }
        }
        Ok(answers)
    }
}

/// Returns the code of an answer that is an error.
fn code(answer: &Value) -> Option<&str> {
    match answer {
        Value::ServerError(error) => Some(error.code()),
        _ => None,
    }
}
