//! Calls within a transaction of the crate `postgres`, whose calls block.

use postgres::Transaction;

use super::Postgres;
use super::transaction::{CallValues, CompletionValues, WRITE_ONE, answered, completed};
use crate::calls::{
    CallError, CallWithin, CompleteError, CompletesRun, Completion, Invalid, TakesCalls,
};

/// The calls block, and panic within an asynchronous runtime, as all calls of the crate `postgres`
/// do.
#[cfg_attr(docsrs, doc(cfg(feature = "postgres")))]
impl TakesCalls<Postgres> for &mut Transaction<'_> {
    type Answer<A> = Result<A, CallError>;

    fn call<A: Send + 'static>(
        self,
        store: &Postgres,
        call: Result<CallWithin<A>, Invalid>,
    ) -> Result<A, CallError> {
        let CallWithin { call, answer } = call?;
        let values = CallValues::of(&call, store.0.notify);
        let sql = store.0.schema.fill(WRITE_ONE);
        answered(self.query_typed(&sql, &values.typed()), answer)
    }
}

/// It blocks, and panics within an asynchronous runtime, as all calls of the crate `postgres` do.
#[cfg_attr(docsrs, doc(cfg(feature = "postgres")))]
impl CompletesRun for &mut Transaction<'_> {
    type Answer = Result<(), CompleteError>;

    fn complete(self, run: &Completion<'_>) -> Result<(), CompleteError> {
        let sql = Postgres::in_schema(Postgres::COMPLETE, run.namespace)?;
        completed(self.query_typed(&sql, &CompletionValues::of(run).typed()))
    }
}
