//! The statements of a connection.
//!
//! Those that write several rows call functions of the server, which are in `functions.sql`.
//!
//! The last parameter of each is the identity of the tables, which the connection adds. It is asked
//! for in a condition that names no row, so the server decides it first. `OPEN_WRITES` has none: a
//! poll follows it.

pub(super) const WRITE: &str = "select n, answer, due, other, shard, running, attempt \
     from tourbillon.write_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) where (select tourbillon.same_1($11))";

pub(super) const WRITE_EACH: &str = "select n, answer, due, other, shard, running, attempt, code, error \
     from tourbillon.write_each_1($1, $2, $3, $4, $5, $6, $7, $8) where (select tourbillon.same_1($9))";

pub(super) const PAYLOAD_ERRORS: &str =
    "select tourbillon.payload_errors_1($1) where (select tourbillon.same_1($2))";

/// Whether the server has a number for another transaction. It fails if not.
pub(super) const NUMBER: &str =
    "select pg_current_xact_id()::text where (select tourbillon.same_1($1))";

/// The columns of a timer of `t`, which has its state and the name of its live node. A row that a
/// gone node has left behind cancelled is none, and one that follows the run of a gone node has not
/// run yet.
macro_rules! columns {
    () => {
        "select t.queue, t.key, t.due, t.planned, \
         case when t.node is not null or not t.follows then t.attempt else 0 end, \
         case when t.node is not null or not t.follows then t.fails else 0 end, \
         case when t.node is not null or not t.follows then t.crashes else 0 end, \
         case when t.node is not null then t.claimed end, t.cancelled, t.follows and t.node is not null, \
         t.payload::text, t.meta::text, t.state, t.node "
    };
}

/// The nodes that are not gone, and the clock, each read once.
macro_rules! living {
    () => {
        "living as materialized (select d.epoch, d.name from tourbillon.node d where d.gone is null), \
         now as materialized (select clock_timestamp() as now) "
    };
}

/// Rows of timers with their states and the names of their live nodes.
macro_rules! rows {
    () => {
        "select t.queue, t.key, t.due, t.planned, t.attempt, t.fails, t.crashes, t.claimed, \
         t.cancelled, t.follows, t.bytes, t.payload, t.meta, n.node, case when n.node is not null then 'running' \
         when t.queue in (select q.name from tourbillon.queue q where q.paused) or tourbillon.is_paused_1(t.meta) \
         then 'paused' \
         when t.due <= (select now from now) then 'overdue' else 'waiting' end as state \
         from tourbillon.timer t cross join lateral (select case when t.claim is not null \
         then (select l.name from living l where l.epoch = t.claim) end as node) n "
    };
}

pub(super) const GET: &str = concat!(
    "with ",
    living!(),
    columns!(),
    "from (",
    rows!(),
    "where t.queue = $1 and t.key = $2 and (n.node is not null or not t.cancelled) \
     and (select tourbillon.same_1($3))) t"
);

/// A page of a list: `$first` has a row for each part that is in order, and `$part` chooses its
/// timers. Each part has no more of the page than the page has rows. The page ends when the payloads
/// of the rows before have so many bytes.
macro_rules! list {
    ($with:literal, $first:literal, $part:literal) => {
        concat!(
            "with ",
            $with,
            living!(),
            columns!(),
            "from (select t.*, sum(t.bytes) over (order by t.due, t.queue, t.key) - t.bytes as before from ( \
             select t.* from ",
            $first,
            " cross join lateral (select t.* from (",
            rows!(),
            "where ",
            $part,
            " and t.due >= greatest($2::timestamptz, $4, \
             case when $8 = 'waiting' then (select now from now) + interval '1 microsecond' end) \
             and t.due < least($3::timestamptz, \
             case when $8 = 'overdue' then (select now from now) + interval '1 microsecond' end) \
             and ($4::timestamptz is null or (t.due, t.queue, t.key) > ($4, $9::text, $5::text)) \
             and (not $12::boolean or tourbillon.is_schedule_1(t.meta)) \
             and (n.node is not null or not t.cancelled) and ($8 <> 'running' or t.claim is not null or $8 is null) \
             ) t where $8::text is null or t.state = $8 \
             order by t.due, t.queue, t.key limit $6) t order by t.due, t.queue, t.key limit $6) t) t \
             where t.before < $7 and (select tourbillon.same_1($13)) order by t.due, t.queue, t.key"
        )
    };
}

/// The timers of a queue.
pub(super) const LIST: &str = list!(
    "",
    "generate_series(0, 63) s(shard)",
    "t.queue = $1 and t.shard = s.shard and $10::text is not null and $11::text is not null"
);

/// The timers of all queues.
pub(super) const LIST_ALL: &str = list!(
    "",
    "generate_series(0, 63) s(shard)",
    "t.shard + 0::smallint = s.shard and $1::text is null and $10::text is not null and $11::text is not null"
);

/// The timers of a queue, or of all queues, whose keys lie between two texts.
pub(super) const LIST_KEYS: &str = list!(
    "recursive timers(queue) as ((select min(t.queue) from tourbillon.timer t where $1::text is null or t.queue = $1) \
     union all select (select min(t.queue) from tourbillon.timer t where t.queue > m.queue and $1::text is null) \
     from timers m where m.queue is not null), ",
    "timers m",
    "t.queue = m.queue and t.key >= $10 and t.key < $11"
);

/// Timers that nobody runs, in a part of time, of each queue `n` and up to `MOST_COUNTED`.
macro_rules! counted {
    ($part:literal) => {
        concat!(
            "(select count(*) from (select from generate_series(0, 63) s(shard) cross join lateral ( \
             select from tourbillon.timer t where t.queue = n.queue and t.shard = s.shard and ",
            $part,
            " and (t.claim is null or not t.cancelled and t.claim not in (select epoch from living)) limit $1) t limit $1) t)"
        )
    };
}

pub(super) const COUNTS: &str = concat!(
    "with recursive timers(queue) as ((select min(t.queue) from tourbillon.timer t) union all \
     select (select min(t.queue) from tourbillon.timer t where t.queue > n.queue) from timers n where n.queue is not null), \
     letters(queue) as ((select min(d.queue) from tourbillon.dead d) union all \
     select (select min(d.queue) from tourbillon.dead d where d.queue > n.queue) from letters n where n.queue is not null), \
     paused as (select q.name as queue from tourbillon.queue q where q.paused), ",
    living!(),
    ", names as (select queue from timers where queue is not null union select queue from letters \
     where queue is not null union select queue from paused) \
     select c.* from (select n.queue, ",
    counted!("t.due > (select now from now)"),
    " as waiting, ",
    counted!("t.due <= (select now from now)"),
    " as overdue, (select count(*) from generate_series(0, 63) s(shard) cross join lateral ( \
     select t.claim from tourbillon.timer t where t.queue = n.queue and t.shard = s.shard order by t.due limit 256) t \
     where t.claim in (select epoch from living)) as running, \
     (select count(*) from (select from tourbillon.dead d where d.queue = n.queue limit $1) d) as dead, \
     n.queue in (select queue from paused) as paused, \
     (select min(t.due) from generate_series(0, 63) s(shard) cross join lateral ( \
     select t.due from tourbillon.timer t where t.queue = n.queue and t.shard = s.shard \
     and (t.claim is null or not t.cancelled and t.claim not in (select epoch from living)) \
     order by t.due limit 1) t) as oldest, ",
    counted!(
        "t.due > (select now from now) and t.due <= (select now from now) + interval '1 minute'"
    ),
    " as within_minute, ",
    counted!(
        "t.due > (select now from now) and t.due <= (select now from now) + interval '10 minutes'"
    ),
    " as within_ten_minutes from names n) c \
     where (c.paused or c.running > 0 or c.dead > 0 or c.oldest is not null) \
     and (select tourbillon.same_1($2)) order by c.queue"
);

/// Dead letters. The page ends as a list does.
macro_rules! dead {
    ($part:literal) => {
        concat!(
            "with ",
            living!(),
            "select d.id, d.queue, d.key, d.planned, d.at, d.attempt, d.fails, d.crashes, \
             d.error, d.payload::text, d.meta::text, exists (select from tourbillon.timer t where t.queue = d.queue \
             and t.key = d.key and (not t.cancelled or t.claim in (select epoch from living))) from ( \
             select d.*, sum(d.bytes) over (order by d.id) - d.bytes as before from ( \
             select * from tourbillon.dead d where ",
            $part,
            " and d.id > $2 and starts_with(d.key, $5::text) \
             and ($6::interval is null or d.at <= (select now from now) - $6) order by d.id limit $3) d) d \
             where d.before < $4 and (select tourbillon.same_1($7)) order by d.id"
        )
    };
}

pub(super) const DEAD: &str = dead!("d.queue = $1");

pub(super) const DEAD_ALL: &str = dead!("$1::text is null");

pub(super) const DISCARD: &str = "with discarded as (delete from tourbillon.dead d where d.id = any ($1::bigint[]) \
     and (select tourbillon.same_1($2)) returning d.id) select count(*) from discarded";

/// Numbers ascend with time, so this reads no more than it may delete.
pub(super) const DISCARD_OLD: &str = "with discarded as (delete from tourbillon.dead d where d.id in ( \
     select o.id from (select o.id, o.at from tourbillon.dead o order by o.id limit $2) o \
     where o.at <= clock_timestamp() - $1::interval) and (select tourbillon.same_1($3)) returning d.id) \
     select count(*) from discarded";

pub(super) const NODES: &str = "select d.epoch, d.name, d.queues, d.joined, d.beat_at, d.gone, clock_timestamp(), d.schedules::text \
     from tourbillon.node d where (select tourbillon.same_1($1)) order by d.joined, d.epoch";

pub(super) const REVIVE: &str = "select answer, queue, key from tourbillon.revive_1($1, $2) \
     where (select tourbillon.same_1($3))";

pub(super) const PAUSE: &str = "insert into tourbillon.queue (name, paused) \
     select $1::text, $2::boolean where (select tourbillon.same_1($3)) \
     on conflict (name) do update set paused = excluded.paused";

pub(super) const PAUSE_SCHEDULE: &str =
    "select tourbillon.pause_1($1, $2, $3, $4) where (select tourbillon.same_1($5))";

pub(super) const JOIN: &str = "insert into tourbillon.node (epoch, name, queues, schedules) \
     select $1::bigint, $2::text, $3::text[], $4::text::jsonb where (select tourbillon.same_1($5)) \
     on conflict (epoch) do update set queues = excluded.queues, list = node.list + 1 \
     returning beat, clock_timestamp()";

/// The time of the statement was taken before the number of its transaction. A beat that is less
/// than the least one is of an older state: see [`Beats`](crate::store::Beats).
pub(super) const BEAT: &str = "update tourbillon.node set beat = beat + 1, beat_at = clock_timestamp() where epoch = $1 and gone is null \
     and beat >= $2 and (select tourbillon.same_1($3)) \
     returning clock_timestamp(), statement_timestamp(), pg_current_xact_id()::text::bigint, beat";

/// The clock, and the row of a node that has no good beat, if it has one.
pub(super) const ROW: &str = "select clock_timestamp(), d.beat, d.gone is not null \
     from (select) one left join tourbillon.node d on d.epoch = $1 \
     where (select tourbillon.same_1($2))";

/// The clock, and the least number of the open transactions that may have written timers. It comes
/// before the poll, so that the poll sees what a transaction has done that has given its lock back.
/// See [`Complete`].
///
/// All calls that write lock the table before they read the clock. The transactions of users count
/// from there on too, and no others: neither somebody's long transaction on other tables, nor an
/// analysis of this one. The numbers of locks have 32 bits. None of them is below the oldest one
/// that runs, which has 64. The time of the statement was taken before it reads the locks.
///
/// [`Complete`]: crate::store::Complete
pub(super) const OPEN_WRITES: &str = "with locks as materialized ( \
     select l.locktype, l.relation, l.mode, l.virtualtransaction, l.transactionid::text::bigint as number \
     from pg_locks l where l.granted and (l.locktype = 'transactionid' or l.locktype = 'relation' \
     and l.database = (select d.oid from pg_database d where d.datname = current_database())) \
     ), oldest as materialized (select pg_snapshot_xmin(pg_current_snapshot())::text::bigint as number) \
     select statement_timestamp(), (select min(o.number + (n.number - o.number & 4294967295)) \
     from locks t join locks n on n.virtualtransaction = t.virtualtransaction, oldest o \
     where t.locktype = 'relation' and t.relation = 'tourbillon.timer'::regclass \
     and t.mode = 'RowExclusiveLock' \
     and n.locktype = 'transactionid' and n.mode = 'ExclusiveLock')";

/// One statement, so that all of it is of one snapshot. Kinds of rows: 0 the clock, 1 a node, 2 a
/// paused queue, 3 a timer. The clock is read once; as a function in the condition it would be read
/// for each row, and never be a bound of the index. The nodes are read once too: while a
/// transaction stays open, each row of them has as many dead versions as there were beats.
///
/// A node may handle thousands of queues, so their names are sent once: `$13` and `$14` are the
/// lists that this connection has.
///
/// The sum in the conditions of a band is that of the index `timer_survey`, which no other
/// statement can use.
pub(super) const POLL: &str = "with clock as materialized (select clock_timestamp() as now), \
     living as materialized (select d.epoch, d.beat, d.list, d.queues from tourbillon.node d where d.gone is null), \
     me as materialized (select exists (select from living where epoch = $1) as live) \
     select 0, 0::bigint, null::text, (select now from clock), 0::bigint, 0, 0, false, null::text[], 0 \
     where (select tourbillon.same_1($15)) \
     union all \
     select 1, l.beat, null, null, l.epoch, l.list, 0, false, \
     case when not exists (select from unnest($13::bigint[], $14::int[]) k(epoch, list) \
     where k.epoch = l.epoch and k.list = l.list) then l.queues end, 0 from living l \
     union all \
     select 2, 0, q.name, null, 0, 0, 0, false, null, 0 from tourbillon.queue q where q.paused \
     union all \
     select 3, r.n, t.key, t.due, t.gen, t.attempt, t.crashes, t.mine, null, t.bytes \
     from unnest($2::text[], $3::smallint[], $4::timestamptz[], $5::interval[], $6::interval[], $7::bigint[]) \
     with ordinality r(queue, shard, mark, ahead, overdue, seen, n) cross join lateral ( \
     select t.key, t.due, t.gen, t.attempt, t.crashes, t.bytes, \
     coalesce(t.claim = $1 and (select live from me), false) as mine \
     from tourbillon.timer t where t.queue = r.queue and t.shard = r.shard and t.due >= r.mark \
     and t.due < (select now from clock) + r.ahead - r.overdue \
     and (t.claim is null or t.claim = $1 or t.claim not in (select epoch from living)) \
     order by t.due limit r.seen) t \
     union all \
     select 4, b.n, t.queue, t.due, t.timers, 0, 0, false, null, 0 \
     from unnest($8::smallint[], $9::timestamptz[], $10::interval[], $11::interval[], $12::bigint[]) \
     with ordinality b(shard, mark, ahead, overdue, seen, n) cross join lateral ( \
     select t.queue, min(t.due) as due, count(*) as timers from ( \
     select t.queue, t.due from tourbillon.timer t \
     where t.shard + 0::smallint = b.shard and t.due >= b.mark \
     and t.due < (select now from clock) + b.ahead - b.overdue \
     and (t.claim is null or t.claim = $1 or t.claim not in (select epoch from living)) \
     order by t.due limit b.seen) t group by t.queue) t";

pub(super) const CLAIM: &str = "select kind, n, at, number, gen, attempt, due, planned, fails, crashes, payload, \
     statement_timestamp(), meta from tourbillon.claim_1($1, $2, $3, $4, $5, $6, $7, $8, $9) \
     where (select tourbillon.same_1($10))";

pub(super) const CLAIM_EACH: &str = "select kind, n, at, number, gen, attempt, due, planned, fails, crashes, payload, \
     statement_timestamp(), meta, code, error from tourbillon.claim_each_1($1, $2, $3, $4, $5, $6, $7, $8, $9) \
     where (select tourbillon.same_1($10))";

pub(super) const SETTLE: &str = "select n, answer from tourbillon.settle_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, false) \
     where (select tourbillon.same_1($11))";

pub(super) const SETTLE_EACH: &str = "select n, answer, code, error \
     from tourbillon.settle_each_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) where (select tourbillon.same_1($11))";

pub(super) const DECLARE_GONE: &str = "select tourbillon.declare_gone_1($1, $2, $3) \
     where (select tourbillon.same_1($4))";

pub(super) const OLD_NODES: &str = "select exists (select from tourbillon.node \
     where gone < clock_timestamp() - interval '1 day') where (select tourbillon.same_1($1))";

/// A claim of an epoch that is not in the table counts as none, so the row may go when no claim of
/// it is left, and none can be made by a node that is gone.
pub(super) const FORGET: &str = "delete from tourbillon.node d where d.gone < clock_timestamp() - interval '1 day' \
     and not exists (select from tourbillon.timer t where t.claim = d.epoch) \
     and (select tourbillon.same_1($1))";

pub(super) const LEAVE: &str = "update tourbillon.node set gone = clock_timestamp() where epoch = $1 and gone is null \
     and (select tourbillon.same_1($2))";

/// Sets the clock of a schema that a test has made.
#[cfg(feature = "test-util")]
pub(super) const SET_CLOCK: &str =
    "update tourbillon.test_clock set at = $1 where (select tourbillon.same_1($2))";
