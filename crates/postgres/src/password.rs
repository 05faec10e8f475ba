//! Where the password of a connection comes from.

use std::error::Error;
use std::fmt;

use tokio::task::spawn_blocking;

use crate::error::PostgresError;
use crate::passfile::PasswordFile;
use crate::sync::Arc;

type Ask = dyn Fn() -> Result<String, Box<dyn Error + Send + Sync>> + Send + Sync;

/// Where passwords come from.
pub(crate) enum Passwords {
    /// The configuration has the password, or there is none.
    OfUrl,
    /// A function returns it for each connection.
    Asked(AskPassword),
    /// A file may have it, which is read for each connection.
    InFile(PasswordFile),
}

/// A function of the user that returns the password of the next connection.
#[derive(Clone)]
pub(crate) struct AskPassword(Arc<Ask>);

impl AskPassword {
    pub(crate) fn new(
        ask: impl Fn() -> Result<String, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        AskPassword(Arc::new(ask))
    }

    /// Asks on a thread that may block. The function may run a runtime of its own there.
    pub(crate) async fn ask(&self) -> Result<String, PostgresError> {
        let ask = Arc::clone(&self.0);
        match spawn_blocking(move || ask()).await {
            Ok(Ok(password)) => Ok(password),
            Ok(Err(error)) => Err(PostgresError::Unavailable(format!(
                "there is no password: {error}"
            ))),
            // The panic's message has gone to the panic hook.
            Err(_) => Err(PostgresError::Unavailable(
                "there is no password: the function that returns it has panicked".to_owned(),
            )),
        }
    }
}

impl fmt::Debug for AskPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskPassword").finish_non_exhaustive()
    }
}
