//! Calls within a transaction of `tokio_postgres`, whose calls are futures.

use tokio_postgres::Transaction;

use super::Postgres;
use super::transaction::{CallValues, CompletionValues, WRITE_ONE, answered, completed};
use crate::calls::{
    Awaited, CallError, CallWithin, CompleteError, CompletesRun, Completion, Invalid, TakesCalls,
};

/// The calls are awaited.
impl<'t> TakesCalls<Postgres> for &'t Transaction<'_> {
    type Answer<A> = Awaited<'t, Result<A, CallError>>;

    fn call<A: Send + 'static>(
        self,
        store: &Postgres,
        call: Result<CallWithin<A>, Invalid>,
    ) -> Self::Answer<A> {
        // The future outlives the store.
        let (sql, notify) = (store.0.schema.fill(WRITE_ONE).into_owned(), store.0.notify);
        Awaited::new(async move {
            let CallWithin { call, answer } = call?;
            let values = CallValues::of(&call, notify);
            let rows = self.query_typed(&sql, &values.typed()).await;
            answered(rows, answer)
        })
    }
}

/// It is awaited.
impl<'t> CompletesRun for &'t Transaction<'_> {
    type Answer = Awaited<'t, Result<(), CompleteError>>;

    fn complete(self, run: &Completion<'_>) -> Self::Answer {
        let sql = Postgres::in_schema(Postgres::COMPLETE, run.namespace);
        let (queue, key) = (run.queue.to_owned(), run.key.to_owned());
        let next_meta = run.next_meta.map(str::to_owned);
        let numbers = Completion {
            queue: "",
            key: "",
            namespace: "",
            next_meta: None,
            ..*run
        };
        Awaited::new(async move {
            let run = Completion {
                queue: &queue,
                key: &key,
                next_meta: next_meta.as_deref(),
                ..numbers
            };
            let values = CompletionValues::of(&run);
            completed(self.query_typed(&sql?, &values.typed()).await)
        })
    }
}
