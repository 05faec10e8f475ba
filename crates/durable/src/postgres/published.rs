//! Statements for drivers and languages that the crate does not know.

use super::Postgres;
use super::schema::Schema;
use crate::store::StoreError;

/// # Statements for other drivers
///
/// Statements with parameters, for transactions of other drivers and languages. They call the SQL
/// functions that the head of this page shows, and their parameters have types that every driver
/// has. A delay is a number of seconds, and a payload is text with JSON.
///
/// An error of the server ends the transaction, as that of any other statement does. Bad arguments
/// have the code `22023` (`invalid_parameter_value`), `22004` or `22008`, and bad JSON has `22P02`.
///
/// # Examples
///
/// ```no_run
/// # #[cfg(feature = "postgres")] {
/// use tourbillon_durable::Postgres;
///
/// # mod driver { pub(super) type Client = postgres::Client; }
/// fn order(client: &mut driver::Client, number: i64) -> Result<(), Box<dyn std::error::Error>> {
///     let mut transaction = client.transaction()?;
///     transaction.execute("insert into orders (number) values ($1)", &[&number])?;
///     let (key, payload) = (format!("order:{number}"), number.to_string());
///     let meta = r#"{"tenant":"acme"}"#;
///     transaction.query_one(Postgres::SCHEDULE, &[&"pay-by", &key, &900.0, &payload, &meta])?;
///     transaction.commit()?;
///     Ok(())
/// }
/// # }
/// ```
impl Postgres {
    /// Returns a statement for a [schema](crate::PostgresBuilder::schema) of another name than
    /// `tourbillon`: one of those below, or [`Postgres::SCHEMA`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] if the name can't be that of a schema.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "tokio-postgres")] {
    /// use tourbillon_durable::Postgres;
    ///
    /// let cancel = Postgres::in_schema(Postgres::CANCEL, "shop_timers")?;
    /// assert!(cancel.contains("from \"shop_timers\".cancel("));
    /// # }
    /// # Ok::<(), tourbillon_durable::StoreError>(())
    /// ```
    pub fn in_schema(statement: &str, schema: &str) -> Result<String, StoreError> {
        let schema = Schema::new(schema)?;
        Ok(schema.fill(statement).into_owned())
    }

    /// Schedules a timer, and replaces one with the same key.
    ///
    /// Parameters: queue `text`, key `text`, delay in seconds `double precision`, payload as JSON
    /// `text`, [meta](crate::Meta) as JSON `text` or null. The row has `due timestamptz`, `replaced timestamptz`, which is null if there was no
    /// timer, and `running boolean`.
    pub const SCHEDULE: &'static str = "select due, replaced, running from tourbillon.schedule($1::text, $2::text, \
         pg_catalog.make_interval(secs => $3::double precision), $4::text::jsonb, $5::text::jsonb)";

    /// Schedules a timer, unless one with the same key waits or runs. It is safe to repeat while
    /// the timer has not run.
    ///
    /// Parameters: those of [`Postgres::SCHEDULE`]. The row has `scheduled boolean`, `due
    /// timestamptz`, which is that of the other timer if there is one, and `running boolean`.
    pub const SCHEDULE_IF_ABSENT: &'static str = "select scheduled, due, running \
         from tourbillon.schedule_if_absent($1::text, $2::text, \
         pg_catalog.make_interval(secs => $3::double precision), $4::text::jsonb, $5::text::jsonb)";

    /// Moves a timer.
    ///
    /// Parameters: queue `text`, key `text`, delay in seconds `double precision`. The row has
    /// `result text`, which is `moved`, `running` or `not found`, then `moved_from timestamptz`,
    /// `due timestamptz`, `attempt int` and `since timestamptz`.
    pub const RESCHEDULE: &'static str = "select result, moved_from, due, attempt, since \
         from tourbillon.reschedule($1::text, $2::text, pg_catalog.make_interval(secs => $3::double precision))";

    /// Cancels a timer.
    ///
    /// Parameters: queue `text`, key `text`. The row has `result text`, which is `cancelled`,
    /// `running` or `not found`, then `due timestamptz`, `attempt int` and `since timestamptz`.
    pub const CANCEL: &'static str =
        "select result, due, attempt, since from tourbillon.cancel($1::text, $2::text)";

    /// Ends a run within the transaction that has its effect.
    ///
    /// The parameters are those of [`Due::completion`](crate::Due::completion): queue `text`, key
    /// `text`, generation `bigint`, epoch `bigint`, attempt `int`, next `timestamptz` and next_meta
    /// `text`. Only a timer with a schedule has the last two; for others they are null. The row has
    /// `completed boolean`. If it is `false` the run is no longer that of the node, and the transaction must be rolled
    /// back.
    pub const COMPLETE: &'static str = "select tourbillon.complete($1::text, $2::text, $3::bigint, $4::bigint, $5::int, \
         $6::timestamptz, $7::text::jsonb) as completed";
}
