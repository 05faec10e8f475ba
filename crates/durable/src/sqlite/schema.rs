//! The tables in the file, and how an older form of them becomes the present one.
//!
//! All names begin with `tourbillon_`, or another [`Prefix`], since the file is the user's. Times
//! are whole microseconds since 1970 (UTC), and payloads are JSON as text.
//!
//! The table `tourbillon_meta` has the version of the tables, and the oldest version of programs
//! that can still use them. A migration adds what the version before does not need to know, so that
//! its processes go on during a deploy. One that can't do that raises `oldest_ok`.

use std::borrow::Cow;

use rusqlite::{Connection, OptionalExtension};

use super::failure::Failure;
use crate::store::{Form, Namespace, StoreError};

/// What the names of the tables begin with, up to the first underscore after it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Prefix(Namespace);

impl Prefix {
    /// Checks a prefix.
    pub(super) fn new(name: &str) -> Result<Self, StoreError> {
        Namespace::new("prefix", name).map(Prefix)
    }

    pub(super) fn name(&self) -> &str {
        self.0.name()
    }

    /// Puts the prefix in the place of `tourbillon` in a statement.
    pub(super) fn fill<'a>(&self, sql: &'a str) -> Cow<'a, str> {
        const FORM: Form = Form {
            before: "",
            after: "_",
            quote: "",
        };
        self.0.fill(sql, &[FORM])
    }
}

/// One version of the tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Migration {
    /// The version that this migration leads to.
    pub(super) version: i64,
    /// The oldest version of programs that can use the tables after it.
    pub(super) oldest_ok: i64,
    /// The statements.
    pub(super) sql: &'static str,
}

/// All versions, in their order. A migration that was published is never changed.
pub(super) const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    oldest_ok: 1,
    sql: FIRST,
}];

/// The version that this program uses.
pub(super) const VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// - Timers lie in the order in which they were scheduled. With random keys a table in the order of
///   its keys (`without rowid`) takes 1.7 times as long to insert and 1.4 times as long to claim
///   and settle, since each timer then changes a page of its own in both.
/// - The index of due times ends with the key, so that a page of a list that ends within timers due
///   at one instant goes on without sorting them.
/// - By the index of surveys a node finds out which of many queues have anything due. Its sum keeps
///   the planner from it where a statement names a queue.
/// - The identity is beside the version, in a page that only a migration writes. So it is not in
///   the log but in the file, and a connection without a cache reads it from there.
/// - The views may have outlived tables that somebody dropped.
/// - The index of claims has only what is held now. By it a node that is gone is known to have
///   left nothing behind.
const FIRST: &str = "
create table tourbillon_meta(
    id integer primary key check (id = 1),
    version integer not null,
    oldest_ok integer not null,
    identity integer not null
) strict;
insert into tourbillon_meta(id, version, oldest_ok, identity) values (1, 1, 1, random());

create table tourbillon_timer(
    queue text not null,
    key text not null,
    shard integer not null check (shard between 0 and 63),
    due integer not null,
    planned integer not null,
    generation integer not null,
    attempt integer not null default 0 check (attempt between 0 and 4294967295),
    fails integer not null default 0 check (fails between 0 and 4294967295),
    crashes integer not null default 0 check (crashes between 0 and 4294967295),
    claim integer,
    since integer,
    cancelled integer not null default 0,
    follows integer not null default 0,
    payload text not null,
    meta text check (meta is null or case when json_valid(meta) then json_type(meta) = 'object' else 0 end),
    primary key (queue, key),
    check ((claim is null) = (since is null)),
    check (claim is not null or not (cancelled or follows)),
    check (not (cancelled and follows))
) strict;
create index tourbillon_timer_due on tourbillon_timer(queue, shard, due, key);
create index tourbillon_timer_survey on tourbillon_timer(shard + 0, due);
create index tourbillon_timer_claim on tourbillon_timer(claim) where claim is not null;

create table tourbillon_node(
    epoch integer primary key,
    name text not null,
    queues text not null,
    schedules text not null default '{}',
    beat integer not null default 0,
    beat_at integer not null,
    joined integer not null,
    gone integer
) strict;

create table tourbillon_dead(
    id integer primary key autoincrement,
    queue text not null,
    key text not null,
    shard integer not null check (shard between 0 and 63),
    planned integer not null,
    at integer not null,
    attempt integer not null,
    fails integer not null,
    crashes integer not null,
    error text not null,
    payload text not null,
    meta text
) strict;
create index tourbillon_dead_queue on tourbillon_dead(queue, id);

create table tourbillon_queue(
    name text primary key,
    paused integer not null default 0
) strict, without rowid;

drop view if exists tourbillon_timers;
create view tourbillon_timers as select
    t.queue,
    t.key,
    strftime('%Y-%m-%d %H:%M:%S', t.due / 1000000, 'unixepoch')
        || printf('.%06d', t.due % 1000000) as due_utc,
    case
        when n.epoch is not null then 'running'
        when exists (select 1 from tourbillon_queue q where q.name = t.queue and q.paused) then 'paused'
        when json_type(t.meta, '$.cron.expression') is not null and json_type(t.meta, '$.cron.paused') = 'true' then 'paused'
        when t.due / 1000 <= cast((julianday('now') - 2440587.5) * 86400000.0 as integer) then 'overdue'
        else 'waiting'
    end as state,
    n.name as node,
    case when n.epoch is not null then strftime('%Y-%m-%d %H:%M:%S', t.since / 1000000, 'unixepoch')
        || printf('.%06d', t.since % 1000000) end as running_since_utc,
    t.cancelled,
    case when n.epoch is null then 0 else t.follows end as follows,
    case when n.epoch is null and t.follows then 0 else t.attempt end as attempt,
    case when n.epoch is null and t.follows then 0 else t.fails end as fails,
    case when n.epoch is null and t.follows then 0 else t.crashes end as crashes,
    t.payload,
    t.meta
from tourbillon_timer t left join tourbillon_node n on n.epoch = t.claim and n.gone is null
where n.epoch is not null or not t.cancelled;

create trigger tourbillon_timers_move instead of update of due_utc on tourbillon_timers
begin
    select raise(abort, 'the due time is a UTC time such as 2031-12-24 18:00:00')
    where julianday(new.due_utc) is null;
    update tourbillon_timer set
        generation = case when claim is not null and follows and old.state <> 'running'
            then random() & 9223372036854775807 else generation end,
        attempt = case when claim is not null and follows and old.state <> 'running' then 0 else attempt end,
        fails = case when old.state = 'running' then fails else 0 end,
        crashes = case when old.state = 'running' then crashes else 0 end,
        follows = case when old.state = 'running' then follows else 0 end,
        claim = case when old.state = 'running' then claim end,
        since = case when old.state = 'running' then since end,
        due = 1000 * max(cast((julianday(new.due_utc) - 2440587.5) * 86400000.0 as integer),
            cast((julianday('now') - 2440587.5) * 86400000.0 as integer)),
        planned = 1000 * max(cast((julianday(new.due_utc) - 2440587.5) * 86400000.0 as integer),
            cast((julianday('now') - 2440587.5) * 86400000.0 as integer))
    where queue = old.queue and key = old.key and (old.state <> 'running' or follows);
end;

create trigger tourbillon_timers_cancel instead of delete on tourbillon_timers
begin
    update tourbillon_timer set
        cancelled = 1,
        follows = 0,
        due = case when follows then 1000 * cast((julianday('now') - 2440587.5) * 86400000.0 as integer) else due end,
        planned = case when follows
            then 1000 * cast((julianday('now') - 2440587.5) * 86400000.0 as integer) else planned end
    where queue = old.queue and key = old.key and old.state = 'running' and not cancelled;
    delete from tourbillon_timer where queue = old.queue and key = old.key and old.state <> 'running';
end;

drop view if exists tourbillon_dead_letters;
create view tourbillon_dead_letters as select
    d.id,
    d.queue,
    d.key,
    strftime('%Y-%m-%d %H:%M:%S', d.at / 1000000, 'unixepoch') || printf('.%06d', d.at % 1000000) as given_up_utc,
    d.attempt,
    d.fails,
    d.crashes,
    d.error,
    exists (select 1 from tourbillon_timers t where t.queue = d.queue and t.key = d.key) as has_timer,
    0 as revived,
    d.payload,
    d.meta
from tourbillon_dead d;

create trigger tourbillon_dead_letters_discard instead of delete on tourbillon_dead_letters
begin
    delete from tourbillon_dead where id = old.id;
end;

create trigger tourbillon_dead_letters_revive instead of update of revived on tourbillon_dead_letters
when new.revived and not old.has_timer
begin
    -- What a node that is gone has left behind cancelled.
    delete from tourbillon_timer where queue = old.queue and key = old.key;
    insert into tourbillon_timer(queue, key, shard, due, planned, generation, payload, meta)
    select queue, key, shard, 1000 * cast((julianday('now') - 2440587.5) * 86400000.0 as integer),
        1000 * cast((julianday('now') - 2440587.5) * 86400000.0 as integer),
        random() & 9223372036854775807, payload, meta
    from tourbillon_dead where id = old.id;
    delete from tourbillon_dead where id = old.id;
end;

drop view if exists tourbillon_queues;
create view tourbillon_queues as select
    n.queue,
    exists (select 1 from tourbillon_queue q where q.name = n.queue and q.paused) as paused,
    (select count(*) from tourbillon_timers t where t.queue = n.queue and t.state <> 'running') as pending,
    (select min(t.due_utc) from tourbillon_timers t where t.queue = n.queue and t.state <> 'running') as first_due_utc,
    (select count(*) from tourbillon_timers t where t.queue = n.queue and t.state = 'running') as running,
    (select count(*) from tourbillon_dead d where d.queue = n.queue) as dead
from (
    select queue from tourbillon_timer union select queue from tourbillon_dead
    union select name from tourbillon_queue where paused
) n;

create trigger tourbillon_queues_pause instead of update of paused on tourbillon_queues
begin
    delete from tourbillon_queue where name = old.queue;
    insert into tourbillon_queue(name, paused) select old.queue, 1 where new.paused;
end;

drop view if exists tourbillon_nodes;
create view tourbillon_nodes as select
    n.epoch as id,
    n.name,
    n.queues,
    strftime('%Y-%m-%d %H:%M:%S', n.joined / 1000000, 'unixepoch') as joined_utc,
    (cast((julianday('now') - 2440587.5) * 86400000.0 as integer) - n.beat_at / 1000) / 1000.0 as silent_seconds,
    strftime('%Y-%m-%d %H:%M:%S', n.gone / 1000000, 'unixepoch') as gone_utc
from tourbillon_node n;

drop view if exists tourbillon_schedules;
create view tourbillon_schedules as select
    t.queue,
    t.key,
    json_extract(t.meta, '$.cron.expression') as expression,
    json_extract(t.meta, '$.cron.zone') as zone,
    t.state,
    case when t.due_utc < '9999-12-31 23:59:59' then t.due_utc end as next_utc,
    json_extract(t.meta, '$.cron.last.at') as last,
    json_extract(t.meta, '$.cron.last.ended') as last_ended,
    json_extract(t.meta, '$.cron.last.outcome') as last_outcome,
    json_extract(t.meta, '$.cron.revision') as revision,
    coalesce(json_type(t.meta, '$.cron.paused') = 'true', 0) as paused,
    -- A program has named it, and none that runs does.
    coalesce(json_type(t.meta, '$.cron.declared') = 'true', 0) and not exists (
        select 1 from tourbillon_node n, json_each(n.schedules) q, json_each(q.value) k
        where n.gone is null and q.key = t.queue and k.value = t.key) as unnamed
from tourbillon_timers t where json_type(t.meta, '$.cron.expression') is not null;

create trigger tourbillon_schedules_pause instead of update of paused on tourbillon_schedules
when (new.paused <> 0) <> old.paused
begin
    update tourbillon_timer set
        meta = case when new.paused then json_set(meta, '$.cron.paused', json('true')) else json_remove(meta, '$.cron.paused') end,
        due = case
            when claim is not null and not follows then due
            when new.paused then 253402300799999999
            when due = 253402300799999999
                then max(planned, 1000 * cast((julianday('now') - 2440587.5) * 86400000.0 as integer))
            else due end
    where queue = old.queue and key = old.key and not cancelled;
end;

create trigger tourbillon_schedules_cancel instead of delete on tourbillon_schedules
begin
    delete from tourbillon_timers where queue = old.queue and key = old.key;
end;
";

/// Names all columns that this version uses.
const COLUMNS: &str = "select
    t.queue, t.key, t.shard, t.due, t.planned, t.generation, t.attempt, t.fails, t.crashes, t.claim, t.since,
    t.cancelled, t.follows, t.payload, t.meta,
    n.epoch, n.name, n.queues, n.schedules, n.beat, n.beat_at, n.joined, n.gone,
    d.id, d.queue, d.key, d.shard, d.planned, d.at, d.attempt, d.fails, d.crashes, d.error, d.payload, d.meta,
    q.name, q.paused
from tourbillon_timer t, tourbillon_node n, tourbillon_dead d, tourbillon_queue q";

/// The row of `tourbillon_meta`, which each transaction reads first.
#[derive(Clone, Copy, Debug)]
pub(super) struct MetaRow {
    pub(super) version: i64,
    pub(super) oldest_ok: i64,
    /// 63 random bits.
    pub(super) random: i64,
    /// Drawn when the tables were made. A backup has the same one.
    pub(super) identity: i64,
}

/// Reads the row of `tourbillon_meta`, and checks whether this program may use the tables.
/// Without tables the error is `missing`.
pub(super) fn read(
    connection: &Connection,
    prefix: &Prefix,
    missing: fn() -> StoreError,
) -> Result<MetaRow, Failure> {
    let meta = read_any(connection, prefix)?.ok_or_else(missing)?;
    admits(&meta, VERSION)?;
    Ok(meta)
}

/// The identity of the tables, or `None` if there are none.
pub(super) fn identity(connection: &Connection, prefix: &Prefix) -> Result<Option<i64>, Failure> {
    Ok(read_any(connection, prefix)?.map(|meta| meta.identity))
}

fn read_any(connection: &Connection, prefix: &Prefix) -> Result<Option<MetaRow>, Failure> {
    let sql = "select version, oldest_ok, random() & 9223372036854775807, identity \
         from tourbillon_meta where id = 1";
    let mut statement = match connection.prepare_cached(&prefix.fill(sql)) {
        Ok(statement) => statement,
        Err(error) => {
            return match has_tables(connection, prefix)? {
                true => Err(error.into()),
                false => Ok(None),
            };
        }
    };
    let meta = statement.query_row((), |row| {
        Ok(MetaRow {
            version: row.get(0)?,
            oldest_ok: row.get(1)?,
            random: row.get(2)?,
            identity: row.get(3)?,
        })
    });
    meta.optional()?
        .map_or_else(|| Err(without_version().into()), |meta| Ok(Some(meta)))
}

/// Whether the file has tables of timers.
pub(super) fn has_tables(
    connection: &Connection,
    prefix: &Prefix,
) -> Result<bool, rusqlite::Error> {
    let sql = "select 1 from sqlite_schema where type = 'table' and name = 'tourbillon_meta'";
    connection.prepare_cached(&prefix.fill(sql))?.exists(())
}

pub(super) fn missing() -> StoreError {
    StoreError::Refused(
        "the file has no tables for timers: open it once with `Sqlite::open`, which creates them"
            .to_owned(),
    )
}

fn without_version() -> StoreError {
    StoreError::Refused("the table `tourbillon_meta` has lost its row with the version".to_owned())
}

/// Whether a program of this version may use the tables.
fn admits(meta: &MetaRow, mine: i64) -> Result<(), StoreError> {
    let theirs = meta.version;
    if theirs < mine {
        return Err(StoreError::Refused(format!(
            "the tables have version {theirs}, older than the {mine} of this program, although they \
             were migrated: was an older file put in their place? Open it with `Sqlite::open`"
        )));
    }
    admits_newer(meta, mine)
}

fn admits_newer(meta: &MetaRow, mine: i64) -> Result<(), StoreError> {
    let (theirs, oldest_ok) = (meta.version, meta.oldest_ok);
    if oldest_ok > mine {
        return Err(StoreError::Refused(format!(
            "the tables have version {theirs}, which programs from version {oldest_ok} on can use, \
             and this program has version {mine}: update it"
        )));
    }
    Ok(())
}

/// Creates the tables, or brings them to the version of the last migration. It runs within a write
/// transaction.
pub(super) fn migrate(
    connection: &Connection,
    prefix: &Prefix,
    migrations: &[Migration],
) -> Result<(), Failure> {
    let meta = read_any(connection, prefix)?;
    let mine = migrations.last().map_or(0, |migration| migration.version);
    if let Some(meta) = &meta {
        admits_newer(meta, mine)?;
    }
    let theirs = meta.map_or(0, |meta| meta.version);
    for migration in migrations
        .iter()
        .filter(|migration| migration.version > theirs)
    {
        connection.execute_batch(&prefix.fill(migration.sql))?;
        connection.execute(
            &prefix.fill("update tourbillon_meta set version = ?1, oldest_ok = ?2 where id = 1"),
            (migration.version, migration.oldest_ok),
        )?;
    }
    Ok(())
}

/// Refuses tables that a version made before the first release, which have the number of this one.
pub(super) fn check_columns(connection: &Connection, prefix: &Prefix) -> Result<(), Failure> {
    // SQLite looks for the columns, and reads no row.
    match connection.prepare(&prefix.fill(COLUMNS)) {
        Ok(_) => Ok(()),
        Err(rusqlite::Error::SqlInputError { msg, .. }) => Err(StoreError::Refused(format!(
            "{msg}: the tables with the prefix {} were made by an earlier version of tourbillon-durable; make \
             them anew, in another file or with another prefix",
            prefix.name()
        ))
        .into()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the tables are there, and need no migration.
pub(super) fn is_current(connection: &Connection, prefix: &Prefix) -> Result<bool, Failure> {
    let Some(meta) = read_any(connection, prefix)? else {
        return Ok(false);
    };
    admits_newer(&meta, VERSION)?;
    Ok(meta.version >= VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened() -> Connection {
        Connection::open_in_memory().expect("a connection")
    }

    fn version(connection: &Connection) -> (i64, i64) {
        let meta = read_any(connection, &Prefix::default())
            .expect("an answer")
            .expect("a row");
        (meta.version, meta.oldest_ok)
    }

    const NEXT: Migration = Migration {
        version: 2,
        oldest_ok: 1,
        sql: "alter table tourbillon_timer add column note text",
    };

    const BREAK: Migration = Migration {
        version: 3,
        oldest_ok: 3,
        sql: "alter table tourbillon_timer rename column note to remark",
    };

    #[test]
    fn tables_go_through_all_versions_in_their_order() {
        let all = [MIGRATIONS[0], NEXT, BREAK];
        let connection = opened();
        for known in 1..=all.len() {
            migrate(&connection, &Prefix::default(), &all[..known]).expect("migrated");
            // Once more is harmless.
            migrate(&connection, &Prefix::default(), &all[..known]).expect("migrated");
            let last = all[known - 1];
            assert_eq!(version(&connection), (last.version, last.oldest_ok));
        }
        connection
            .prepare("select remark from tourbillon_timer")
            .expect("the last form");
        let at_once = opened();
        migrate(&at_once, &Prefix::default(), &all).expect("migrated");
        assert_eq!(version(&at_once), (3, 3));
    }

    #[test]
    fn a_program_uses_newer_tables_that_admit_it_and_leaves_them_alone() {
        let connection = opened();
        migrate(&connection, &Prefix::default(), &[MIGRATIONS[0], NEXT]).expect("migrated");
        migrate(&connection, &Prefix::default(), MIGRATIONS).expect("admitted");
        assert!(is_current(&connection, &Prefix::default()).expect("admitted"));
        assert!(read(&connection, &Prefix::default(), missing).is_ok());
        assert_eq!(version(&connection), (2, 1));
    }

    #[test]
    fn a_program_that_newer_tables_do_not_admit_is_refused() {
        let connection = opened();
        migrate(
            &connection,
            &Prefix::default(),
            &[MIGRATIONS[0], NEXT, BREAK],
        )
        .expect("migrated");
        let refusals = [
            migrate(&connection, &Prefix::default(), MIGRATIONS).err(),
            is_current(&connection, &Prefix::default()).err(),
            read(&connection, &Prefix::default(), missing).err(),
        ];
        for refusal in refusals {
            let Some(Failure::Store(StoreError::Refused(why))) = refusal else {
                panic!("{refusal:?}");
            };
            assert!(why.contains("version 3") && why.contains("update"), "{why}");
        }
    }

    #[test]
    fn a_migration_that_fails_changes_nothing() {
        let connection = opened();
        migrate(&connection, &Prefix::default(), MIGRATIONS).expect("migrated");
        let wrong = Migration {
            sql: "alter table tourbillon_timer add column note text; select no_such_function()",
            ..NEXT
        };
        connection.execute_batch("begin immediate").expect("begun");
        assert!(migrate(&connection, &Prefix::default(), &[MIGRATIONS[0], wrong]).is_err());
        connection.execute_batch("rollback").expect("undone");
        assert_eq!(version(&connection), (1, 1));
        migrate(&connection, &Prefix::default(), &[MIGRATIONS[0], NEXT]).expect("migrated");
    }
}
